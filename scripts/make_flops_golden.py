#!/usr/bin/env python3
"""Writes tests/data/flops_golden.json: what PyTorch's own torch.utils.flop_counter counts of a small model with a
convolution, a transposed one, attention and products of every form, forward and backward, module by module.

tests/dist/flops_profiler_test.cpp runs the same model. Needs torch (2.13.0 made the committed file).
Usage: make_flops_golden.py [file]
"""
import json
import pathlib
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

aten = torch.ops.aten

# The counter knows the formulas of attention, but not that these operators, the CPU's, are attention.
CPU_ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu:
        lambda q, k, v, *args, **kwargs: sdpa_flop_count(q, k, v),
    aten._scaled_dot_product_flash_attention_for_cpu_backward:
        lambda gradient, q, k, v, *args, **kwargs: sdpa_backward_flop_count(gradient, q, k, v),
}


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.qkv = nn.Linear(100, 24)
        self.norm = nn.LayerNorm(8)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5, bias=False))
        self.head = nn.Linear(5, 3)
        self.mix = nn.Parameter(torch.zeros(4, 4))

    def forward(self, x):
        x = self.qkv(self.up(torch.tanh(self.conv(x))).flatten(2))
        q, k, v = (part.view(2, 4, 2, 4).transpose(1, 2) for part in x.chunk(3, -1))
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 4, 8)
        x = self.norm(x)
        x = torch.baddbmm(self.mix.expand(2, 4, 4), x, x.transpose(1, 2))
        return self.head(self.body(x).mean(1))


def main():
    target = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else
                          pathlib.Path(__file__).parent.parent / "tests/data/flops_golden.json")
    model = Mixed()
    x = torch.rand(2, 3, 10, 10)
    forward = FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION)
    with forward:
        loss = model(x).sum()
    backward = FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION)
    with backward:
        loss.backward()
    both = FlopCounterMode(display=False, depth=9, custom_mapping=CPU_ATTENTION)
    with both:
        model(x).sum().backward()
    modules = {name.removeprefix("Mixed").lstrip("."): sum(counts.values())
               for name, counts in both.get_flop_counts().items() if name != "Global"}
    golden = {"forward": forward.get_total_flops(), "backward": backward.get_total_flops(), "modules": modules}
    target.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
