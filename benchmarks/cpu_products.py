#!/usr/bin/env python3
"""Steps of an MLP, a GPT, an LSTM, a GRU and a convolutional network on the CPU in fp32, bf16 and fp16: by libtorch's own
kernels, and with 16-bit products computed in fp32.

    .venv/bin/python benchmarks/cpu_products.py [--models mlp,gpt,lstm,gru,conv] [--dtypes bf16,fp16] [--threads 1]

One JSON line for each model and dtype: milliseconds of forward and backward (the fastest of those in --seconds), and the
largest error of outputs and of gradients against fp64, relative to the largest value, for both ways. Fails where the
errors of the products in fp32 are larger than those of libtorch's own. A processor without AVX-512 on one that has it:

    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 ZERO_ISA=avx2 .venv/bin/python benchmarks/cpu_products.py
"""
import argparse
import copy
import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

from zerotorch.cpu_products import CpuProducts, measure

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc, self.out = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        batch, length, dim = x.shape
        heads = [t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, dim=-1)]
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, length, dim))
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layers, self.head = kind(256, 256, 2, batch_first=True), nn.Linear(256, 16)

    def forward(self, x):
        return self.head(self.layers(x)[0])


def gpt():
    dim = 256
    return nn.Sequential(nn.Embedding(256, dim), Block(dim, 4), Block(dim, 4), nn.LayerNorm(dim), nn.Linear(dim, 256))


def conv():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)), lambda: torch.randn(256, 512)),
    "gpt": (gpt, lambda: torch.randint(256, (4, 128))),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda: torch.randn(32, 64, 256)),
    "gru": (lambda: Recurrent(nn.GRU), lambda: torch.randn(32, 64, 256)),
    "conv": (conv, lambda: torch.randn(8, 3, 32, 32)),
}


def step(model, batch):
    output = model(batch)
    output.float().square().mean().backward()
    grads = [p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return [output.detach()], grads


def fastest(model, batch, seconds):
    step(model, batch)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        step(model, batch)
        best = min(best, time.perf_counter() - begin)
    return 1e3 * best


def error(got, wanted):
    return max(((g.double() - w).abs().max() / w.abs().max().clamp(min=1e-6)).item() for g, w in zip(got, wanted))


def measured(model, batch, dtype, exact, seconds):
    model, batch = copy.deepcopy(model).to(dtype), batch.to(dtype) if batch.is_floating_point() else batch
    milliseconds = fastest(model, batch, seconds)
    errors = [error(got, wanted) for got, wanted in zip(step(model, batch), exact)]
    return {"ms": round(milliseconds, 2), "output_error": errors[0], "gradient_error": errors[1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--dtypes", default="bf16,fp16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    speeds = {name: [round(speed / 1e9, 1) for speed in measure(dtype, 256)] for name, dtype in DTYPES.items()}
    print(json.dumps({"gflops_native_and_in_fp32": speeds, "torch": torch.__version__,
                      "capability": torch.backends.cpu.get_cpu_capability()}), flush=True)
    well = True
    for name in options.models.split(","):
        torch.manual_seed(0)
        make, draw = MODELS[name]
        model, batch = make(), draw()
        # Both begin from weights and inputs that 16 bits hold exactly: what is compared is the arithmetic.
        for dtype_name in options.dtypes.split(","):
            dtype = DTYPES[dtype_name]
            rounded = copy.deepcopy(model).to(dtype).double()
            inputs = batch.to(dtype).double() if batch.is_floating_point() else batch
            exact = step(rounded, inputs)
            fp32 = measured(rounded, inputs, torch.float32, exact, options.seconds)
            native = measured(rounded, inputs, dtype, exact, options.seconds)
            with CpuProducts("fp32", dtype):
                ours = measured(rounded, inputs, dtype, exact, options.seconds)
            accurate = all(ours[kind] <= 1.25 * native[kind] for kind in ("output_error", "gradient_error"))
            well &= accurate
            print(json.dumps({"model": name, "dtype": dtype_name, "fp32": fp32, "native": native, "in_fp32": ours,
                              "of_fp32": round(ours["ms"] / fp32["ms"], 2),
                              "faster_than_native": round(native["ms"] / ours["ms"], 1), "accurate": accurate}),
                  flush=True)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
