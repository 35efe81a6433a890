"""The same GPT, data and seeds in C++ and in Python: the same bits, also where one goes on from the other."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run
from torch import nn
from torch.nn import functional as F

TRAINER = os.environ.get("ZERO_GPT_TRAINER", "")
pytestmark = pytest.mark.skipif(not TRAINER, reason="ZERO_GPT_TRAINER names no program")

DIM, HEADS, VOCAB, SEQ = 24, 3, 31, 11
STEPS = 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)
        self.ln2 = nn.LayerNorm(DIM)
        self.fc = nn.Linear(DIM, 4 * DIM)
        self.out = nn.Linear(4 * DIM, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(self.ln1(x)).split(DIM, 2)
        q, k, v = (part.view(batch, length, HEADS, DIM // HEADS).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, DIM))
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCAB, DIM)
        self.wpe = nn.Embedding(SEQ, DIM)
        self.h = nn.ModuleList([Block(), Block()])
        self.lnf = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        torch.manual_seed(7)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() == 1:
                    parameter.fill_(1.0 if name.endswith(".weight") else 0.0)
                else:
                    ends_branch = name.endswith((".proj.weight", ".out.weight"))
                    parameter.normal_(0.0, 0.02 / 4.0**0.5 if ends_branch else 0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.head(self.lnf(x))


def config(precision: str) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
        "zero_optimization": {"stage": 3},
        "zerotorch": {"seed": 3},
        **({} if precision == "fp32" else {precision: {"enabled": True}}),
    }


def in_python(precision: str, first: int, last: int, load: str, save: str) -> list[str]:
    import zerotorch

    engine = zerotorch.initialize(
        model=(model := GPT()), model_parameters=model.parameters(), config=config(precision)
    )[0]
    if load != "-":
        assert engine.load_checkpoint(load)[0] is not None
    losses = []
    for step in range(first, last):
        flat = torch.arange(4 * 12) * (step + 3) + engine.global_rank
        tokens = flat.square().remainder(VOCAB).view(4, 12)
        loss = F.cross_entropy(engine(tokens[:, :-1]).float().view(-1, VOCAB), tokens[:, 1:].reshape(-1))
        engine.backward(loss)
        engine.step()
        losses.append(float(loss.item()).hex())
    if save != "-":
        engine.save_checkpoint(save)
    engine.destroy()
    return losses


def in_cpp(folder: Path, precision: str, first: int, last: int, load: str, save: str) -> list[str]:
    path = folder / "config.json"
    path.write_text(json.dumps(config(precision)))
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "ZERO_JOB_ID")
    environment = {name: value for name, value in os.environ.items() if name not in launcher}
    command = [TRAINER, str(path), str(first), str(last), load, save]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [float.fromhex(line).hex() for line in done.stdout.split()]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_same_bits(tmp_path: Path, precision: str) -> None:
    cpp, python = str(tmp_path / "cpp"), str(tmp_path / "python")
    wanted = in_cpp(tmp_path, precision, 0, STEPS, "-", cpp) + in_cpp(tmp_path, precision, STEPS, 2 * STEPS, cpp, "-")
    assert run(1, in_python, precision, 0, STEPS, "-", python)[0] == wanted[:STEPS]
    assert run(1, in_python, precision, STEPS, 2 * STEPS, cpp, "-")[0] == wanted[STEPS:]
    assert in_cpp(tmp_path, precision, STEPS, 2 * STEPS, python, "-") == wanted[STEPS:]
