#!/usr/bin/env python3
"""Writes tests/data/whole_tensor_golden.json: weights after 20 steps of Muon, LAMB and Adafactor on tensors of
odd shapes.

Muon's are made by DeepSpeed's own runtime/zero/muon/original_muon.py, its iterations in fp32 as on an accelerator
without 16-bit types (it fails on filters of four dimensions), LAMB's by the formula of its csrc/lamb in double, Adafactor's by
PyTorch.
Needs torch and the source distribution of DeepSpeed (0.19.8 made the committed file), unpacked.
Usage: make_whole_tensor_golden.py FOLDER [file]
"""
import importlib.util
import json
import math
import pathlib
import sys
import types

import torch

SHAPES = {
    "first.weight": [13, 7],
    "first.bias": [13],
    "stack.weight": [4, 3, 5],
    "tall.weight": [30, 5],
    "square.weight": [9, 9],
    "embed.weight": [11, 6],
    "lm_head.weight": [5, 8],
    "gain": [1],
}
STEPS = 20
MUON = {"muon_lr": 0.03, "adam_lr": 0.004, "weight_decay": 0.1, "momentum": 0.9, "betas": [0.9, 0.95], "eps": 1e-10}
LAMB = {"lr": 0.01, "weight_decay": 0.1, "betas": [0.9, 0.99], "eps": 1e-6, "max_coeff": 0.3, "min_coeff": 0.02}

ADAFACTOR = {"lr": 0.02, "weight_decay": 0.1, "beta2_decay": -0.7, "d": 1.0}


def start(p, numel):
    return torch.tensor([0.5 * math.sin(0.71 * i + p) for i in range(numel)])


def gradient(p, step, numel):
    return torch.tensor([math.sin(0.37 * i + 1.3 * p + 0.9 * step) + 0.5 * math.cos(0.11 * i * step)
                         for i in range(numel)])


def stub(name, **members):
    module = types.ModuleType(name)
    module.__dict__.update(members)
    module.__path__ = []
    sys.modules[name] = module
    return module


def load_muon(folder):
    class Accelerator:
        def is_fp16_supported(self):
            return False

        is_bf16_supported = is_fp16_supported

    stub("deepspeed", comm=stub("deepspeed.comm"))
    compiler = stub("deepspeed.runtime.compiler", compile=lambda: (lambda function: function))
    stub("deepspeed.runtime", compiler=compiler)
    stub("deepspeed.accelerator", get_accelerator=Accelerator)
    path = folder / "deepspeed/runtime/zero/muon/original_muon.py"
    spec = importlib.util.spec_from_file_location("original_muon", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_muon(muon, method):
    parameters = {name: torch.nn.Parameter(start(p, math.prod(shape)).view(shape))
                  for p, (name, shape) in enumerate(SHAPES.items())}
    by_muon = [v for n, v in parameters.items() if v.ndim >= 2 and not any(k in n for k in ("embed", "lm_head"))]
    rest = [v for v in parameters.values() if not any(v is other for other in by_muon)]
    optimizer = muon.SingleDeviceMuonWithAuxAdam([
        dict(params=by_muon, use_muon=True, lr=MUON["muon_lr"], momentum=MUON["momentum"],
             weight_decay=MUON["weight_decay"], ns_method=method),
        dict(params=rest, use_muon=False, lr=MUON["adam_lr"], betas=tuple(MUON["betas"]), eps=MUON["eps"],
             weight_decay=MUON["weight_decay"]),
    ])
    for step in range(1, STEPS + 1):
        for p, value in enumerate(parameters.values()):
            value.grad = gradient(p, step, value.numel()).view(value.shape)
        optimizer.step()
    return {name: value.detach().flatten().tolist() for name, value in parameters.items()}


def run_lamb():
    beta1, beta2 = LAMB["betas"]
    out = {}
    for p, (name, shape) in enumerate(SHAPES.items()):
        numel = math.prod(shape)
        w = start(p, numel).double()
        m, v = torch.zeros_like(w), torch.zeros_like(w)
        for step in range(1, STEPS + 1):
            g = gradient(p, step, numel).double()
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g * g
            update = m / (v.sqrt() + LAMB["eps"]) + LAMB["weight_decay"] * w
            ratio = 1.0
            if w.norm() != 0 and update.norm() != 0:
                ratio = min(max((w.norm() / update.norm()).item(), LAMB["min_coeff"]), LAMB["max_coeff"])
            step_size = LAMB["lr"] * math.sqrt(1 - beta2**step) / (1 - beta1**step)
            w = w - step_size * ratio * update
        out[name] = w.tolist()
    return out


def run_adafactor():
    parameters = {name: torch.nn.Parameter(start(p, math.prod(shape)).view(shape))
                  for p, (name, shape) in enumerate(SHAPES.items())}
    optimizer = torch.optim.Adafactor(parameters.values(), lr=ADAFACTOR["lr"], beta2_decay=ADAFACTOR["beta2_decay"],
                                      d=ADAFACTOR["d"], weight_decay=ADAFACTOR["weight_decay"], foreach=False)
    for step in range(1, STEPS + 1):
        for p, value in enumerate(parameters.values()):
            value.grad = gradient(p, step, value.numel()).view(value.shape)
        optimizer.step()
    return {name: value.detach().flatten().tolist() for name, value in parameters.items()}


def main():
    folder = pathlib.Path(sys.argv[1])
    muon = load_muon(folder)
    golden = {"steps": STEPS, "shapes": SHAPES, "muon": MUON, "lamb": LAMB, "adafactor": ADAFACTOR,
              "weights": {"Muon gram": run_muon(muon, "gram"), "Muon standard": run_muon(muon, "standard"),
                          "Lamb": run_lamb(), "Adafactor": run_adafactor()}}
    out = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path("tests/data/whole_tensor_golden.json")
    out.write_text(json.dumps(golden, separators=(",", ": ")).replace("}, ", "},\n").replace("],", "],\n") + "\n")


if __name__ == "__main__":
    main()
