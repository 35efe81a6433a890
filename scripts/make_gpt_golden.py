#!/usr/bin/env python3
"""Writes tests/data/gpt_golden.safetensors: what PyTorch makes of a tiny GPT-2, for tests/dist/gpt_golden_test.cpp.

The model is written here once more, with explicit softmax attention, and runs in float64, so that the numbers depend on
no kernel and differ from ours by our rounding only. Needs torch and numpy. Usage: make_gpt_golden.py [file]
"""
import json
import math
import pathlib
import struct
import sys

import torch
from torch import nn

LAYERS, DIM, HEADS, VOCAB, SEQ, SAMPLES, STEPS = 2, 16, 2, 13, 7, 4, 3
# An eps as large as 1e-3 keeps Adam from blowing rounding up where a gradient is zero in theory (the bias of keys).
ADAMW = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-3, "weight_decay": 0.1}
CLIP = 0.5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.fc, self.out = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def attend(self, x):
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, HEADS, DIM // HEADS).transpose(1, 2) for part in self.qkv(x).split(DIM, 2))
        scores = q @ k.transpose(2, 3) / math.sqrt(DIM // HEADS)
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(batch, length, DIM)

    def forward(self, x):
        x = x + self.proj(self.attend(self.ln1(x)))
        hidden = self.fc(self.ln2(x))
        gelu = 0.5 * hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
        return x + self.out(gelu)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, DIM), nn.Embedding(SEQ, DIM)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.lnf, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.head(self.lnf(x))


def write(path, tensors):
    """The safetensors layout: float64 as F32, the rest as it is."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        tensor = tensor.detach().to(torch.int64 if tensor.dtype == torch.int64 else torch.float32).contiguous()
        content = tensor.numpy().tobytes()
        header[name] = {"dtype": "I64" if tensor.dtype == torch.int64 else "F32", "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main():
    default = pathlib.Path(__file__).resolve().parent.parent / "tests/data/gpt_golden.safetensors"
    torch.manual_seed(7)
    torch.set_default_dtype(torch.float64)
    model = GPT()
    with torch.no_grad():
        for parameter in model.parameters():  # exact in float32, all larger than GPT-2's, so that nothing is near zero
            parameter.copy_((0.3 * torch.randn_like(parameter) + (parameter.dim() == 1) * 0.2).float())
    tokens = torch.randint(0, VOCAB, (STEPS, SAMPLES, SEQ + 1))
    tensors = {"tokens": tokens}
    tensors |= {f"start/{name}": value.clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses, norms = [], []
    for step in range(STEPS):
        logits = model(tokens[step, :, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, VOCAB), tokens[step, :, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            tensors["logits"] = logits
            tensors |= {f"gradient/{name}": value.grad.clone() for name, value in model.named_parameters()}
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), CLIP))
        optimizer.step()
        losses.append(loss.detach())
    tensors |= {"losses": torch.stack(losses), "norms": torch.stack(norms)}
    tensors |= {f"after/{name}": value for name, value in model.named_parameters()}
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    write(path, tensors)
    print(f"{path}: losses {[round(float(x), 4) for x in losses]}, norms {[round(float(x), 4) for x in norms]}")


if __name__ == "__main__":
    main()
