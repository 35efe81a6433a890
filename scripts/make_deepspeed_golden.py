#!/usr/bin/env python3
"""Writes tests/data/deepspeed_golden.json: what DeepSpeed's own loss scaler and learning-rate schedules
give, and PyTorch's schedules, which DeepSpeed's JSON may name as well.

Needs torch and the source distribution of DeepSpeed (0.19.8 made the committed file), unpacked; nothing of it is
compiled or installed. Usage: make_deepspeed_golden.py FOLDER [file]
"""
import importlib.util
import json
import pathlib
import random
import sys
import types

import torch


class Quiet:
    def __getattr__(self, name):
        return lambda *args, **kwargs: None


def stub(name, **members):
    """A module of DeepSpeed that what we load imports, without what that would pull in."""
    module = types.ModuleType(name)
    module.__dict__.update(members)
    module.__path__ = []
    sys.modules[name] = module
    return module


def load(folder, path):
    spec = importlib.util.spec_from_file_location(path.replace("/", ".")[: -len(".py")], folder / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def stub_packages():
    stub("deepspeed", comm=types.SimpleNamespace(get_rank=lambda: 0))
    for name in ("deepspeed.runtime", "deepspeed.runtime.fp16"):
        stub(name)
    stub("deepspeed.runtime.config_utils", DeepSpeedConfigObject=object)
    stub("deepspeed.runtime.utils", has_inf_or_nan=None)
    stub("deepspeed.utils", logger=Quiet(), log_dist=Quiet().any)


def loss_scales(module):
    draw = random.Random(20250101)
    cases = []
    for number in range(40):
        case = {
            "init_scale": 2.0 ** draw.choice([4, 8, 16]),
            "scale_window": draw.choice([1, 2, 3, 5, 8]),
            "min_scale": draw.choice([0.25, 1, 2]),
            "delayed_shift": draw.choice([1, 2, 3]),
            "consecutive_hysteresis": draw.random() < 0.5,
        }
        rate = draw.choice([0.05, 0.2, 0.4, 0.6])
        case["overflows"] = [int(draw.random() < rate) for _ in range(100)]
        scaler = module.DynamicLossScaler(**{k: v for k, v in case.items() if k != "overflows"})
        case["scales"] = []
        for overflow in case["overflows"]:
            try:
                scaler.update_scale(bool(overflow))
            except Exception:  # at the smallest scale
                break
            case["scales"].append(scaler.loss_scale)
        cases.append(case)
    return cases


UPDATES = 40

# Base rate, and the parameters of the JSON.
SCHEDULES = {
    "WarmupLR": [(1e-3, {"warmup_min_lr": 1e-5, "warmup_max_lr": 2e-3, "warmup_num_steps": 6}),
                 (1e-3, {"warmup_max_lr": 2e-3, "warmup_num_steps": 6, "warmup_type": "linear"})],
    "WarmupDecayLR": [(1e-3, {"total_num_steps": 12, "warmup_max_lr": 2e-3, "warmup_num_steps": 4,
                              "warmup_type": "linear"}),
                      (1e-3, {"total_num_steps": 30, "warmup_min_lr": 1e-4, "warmup_max_lr": 1e-3,
                              "warmup_num_steps": 5})],
    "WarmupCosineLR": [(1e-3, {"total_num_steps": 12, "warmup_min_ratio": 0.1, "cos_min_ratio": 0.01,
                               "warmup_num_steps": 4, "warmup_type": "linear"}),
                       (3e-4, {"total_num_steps": 33, "warmup_num_steps": 5})],
    "OneCycle": [(1e-3, {"cycle_min_lr": 1e-4, "cycle_max_lr": 2e-3, "cycle_first_step_size": 7}),
                 (1e-3, {"cycle_min_lr": 1e-4, "cycle_max_lr": 2e-3, "cycle_first_step_size": 6,
                         "cycle_second_step_size": 9, "decay_lr_rate": 0.3, "decay_step_size": 4,
                         "cycle_min_mom": 0.7, "cycle_max_mom": 0.95, "decay_mom_rate": 0.01}),
                 (1e-3, {"cycle_min_lr": 0, "cycle_max_lr": 1e-2, "cycle_first_step_size": 10,
                         "cycle_first_stair_count": 4, "cycle_second_stair_count": 3, "decay_step_size": 2}),
                 (1e-3, {"cycle_min_lr": 1e-4, "cycle_max_lr": 2e-3, "cycle_first_step_size": 5,
                         "cycle_second_step_size": 3, "cycle_first_stair_count": 2, "decay_lr_rate": 1,
                         "decay_step_size": 3, "cycle_momentum": False})],
    "LRRangeTest": [(1e-3, {}),
                    (1e-3, {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 5,
                            "lr_range_test_step_rate": 2.5}),
                    (1e-3, {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 7,
                            "lr_range_test_staircase": True})],
    "LinearLR": [(1e-3, {}), (2e-3, {"start_factor": 0.1, "end_factor": 0.5, "total_iters": 13})],
    "CosineAnnealingLR": [(1e-3, {"T_max": 9}), (1e-3, {"T_max": 40, "eta_min": 1e-5})],
    "PolynomialLR": [(1e-3, {}), (1e-3, {"total_iters": 17, "power": 2.5})],
    "StepLR": [(1e-3, {"step_size": 7}), (1e-3, {"step_size": 3, "gamma": 0.8})],
    "ExponentialLR": [(1e-3, {"gamma": 0.9})],
}


def rates(deepspeed):
    """The rate and betas of each update, the schedule stepped after the optimizer, as DeepSpeed's engine does."""
    cases = []
    for name, variants in SCHEDULES.items():
        make = getattr(deepspeed, name, None) or getattr(torch.optim.lr_scheduler, name)
        for base, params in variants:
            optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=base)
            schedule = make(optimizer, **params)
            case = {"type": name, "lr": base, "params": params, "rates": [], "betas": []}
            for _ in range(UPDATES):
                group = optimizer.param_groups[0]
                case["rates"].append(group["lr"])
                case["betas"].append(list(group["betas"]))
                optimizer.step()
                schedule.step()
            cases.append(case)
    return cases


def main():
    folder = pathlib.Path(sys.argv[1])
    target = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else
                          pathlib.Path(__file__).parent.parent / "tests/data/deepspeed_golden.json")
    stub_packages()
    golden = {"loss_scaler": loss_scales(load(folder, "deepspeed/runtime/fp16/loss_scaler.py")),
              "schedules": rates(load(folder, "deepspeed/runtime/lr_schedules.py"))}
    target.write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
