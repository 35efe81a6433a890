#!/usr/bin/env python3
"""Writes tests/data/deepspeed_golden.json: what DeepSpeed's own loss scaler and learning-rate schedules give.

Needs torch and the source distribution of DeepSpeed (0.19.8 made the committed file), unpacked; nothing of it is
compiled or installed. Usage: make_deepspeed_golden.py FOLDER [file]
"""
import importlib.util
import json
import pathlib
import random
import sys
import types


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


def main():
    folder = pathlib.Path(sys.argv[1])
    target = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else
                          pathlib.Path(__file__).parent.parent / "tests/data/deepspeed_golden.json")
    stub_packages()
    golden = {"loss_scaler": loss_scales(load(folder, "deepspeed/runtime/fp16/loss_scaler.py"))}
    target.write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
