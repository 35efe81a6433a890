"""What the two programs leave to their readers: a small transformer, real text, a loss."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

VOCAB = 256  # bytes
SEQ = 64


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm_2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, dim = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, seq, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, seq, dim))
        return x + self.mlp(self.norm_2(x))


class MyLargeTransformer(nn.Module):
    """A GPT over bytes; `dim`, `layers` and `heads` say how large."""

    def __init__(self, dim: int = 128, layers: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, dim)
        self.positions = nn.Embedding(SEQ, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, VOCAB, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        for block in self.blocks:
            nn.init.normal_(block.proj.weight, std=0.02 / math.sqrt(2 * layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class WithLoss(nn.Module):
    """As Hugging Face's models: forward(input_ids, labels) returns an object with a loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace:
        logits = self.model(input_ids)
        return SimpleNamespace(loss=criterion(logits, labels), logits=logits)


def criterion(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


def batches(samples: int, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's part of `steps` batches of `samples` sequences of text, the same for any number of ranks."""
    folder = Path(__file__).resolve().parents[2]
    text = b"".join(path.read_bytes() for path in sorted([folder / "README.md", *folder.glob("docs/*.md")]))
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        starts = torch.randint(len(data) - SEQ - 1, (samples,), generator=generator)
        mine = starts.view(size, samples // size)[rank]
        chunk = torch.stack([data[start : start + SEQ + 1] for start in mine.tolist()])
        yield chunk[:, :-1], chunk[:, 1:]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deepspeed_config", default=str(Path(__file__).parent / "ds_config.json"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--local_rank", type=int, default=0)
    return parser.parse_args()
