"""An odd model, and its training by plain torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

VOCAB = 37
SEQ = 5


class OddModel(nn.Module):
    """Tied embeddings, odd sizes, a raw parameter, a frozen one, buffers of both kinds, a list, a norm with
    statistics."""

    def __init__(self, dim: int = 13, depth: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, dim)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(dim), "up": nn.Linear(dim, 29), "down": nn.Linear(29, dim, bias=False)})
            for _ in range(depth)
        )
        self.gain = nn.Parameter(torch.ones(dim))
        self.shift = nn.Parameter(torch.full((dim,), 0.25), requires_grad=False)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, VOCAB, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(0.5))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer["down"](F.gelu(layer["up"](layer["norm"](x)))) * self.scale
        x = self.gru(x * self.gain + self.shift)[0]
        return self.head(x)


def make(**kwargs: Any) -> OddModel:
    torch.manual_seed(7)
    return OddModel(**kwargs)


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def micro_batches(steps: int, per_step: int) -> Iterator[list[torch.Tensor]]:
    """Steps of `per_step` micro-batches of 2 samples, the same for every number of ranks."""
    generator = torch.Generator().manual_seed(11)
    for _ in range(steps):
        yield [torch.randint(VOCAB, (2, SEQ + 1), generator=generator) for _ in range(per_step)]


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """A hash of all bits, by name."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(tensors[name].detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


def train_plain(optimizer_class: Any, options: dict[str, Any], steps: int, per_step: int) -> tuple[list[float], Any]:
    """Losses of all micro-batches, and the model after them."""
    model = make()
    optimizer = optimizer_class([p for p in model.parameters() if p.requires_grad], **options)
    losses = []
    for batches in micro_batches(steps, per_step):
        for batch in batches:
            loss = loss_of(model, batch)
            loss.backward()
            losses.append(loss.item())
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= per_step
        optimizer.step()
        optimizer.zero_grad()
    return losses, model
