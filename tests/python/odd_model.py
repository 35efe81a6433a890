"""A small model with everything that makes checkpoints hard, and its data. Used to make the committed DeepSpeed folders
(scripts/make_deepspeed_checkpoints.py) and to go on from them; needs torch only."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 13
WIDTH = 7


class OddModel(nn.Module):
    """Tied embedding and head, a frozen parameter, one of a single element, sizes that no number of ranks divides,
    buffers that are saved and one that is not."""

    mean: Tensor
    count: Tensor
    mask: Tensor

    def __init__(self, seed: int = 7) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 11)
        self.fixed = nn.Parameter(torch.empty(5, 11), requires_grad=False)
        self.down = nn.Linear(5, WIDTH)
        self.scale = nn.Parameter(torch.tensor([1.5]))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mean", torch.linspace(-1, 1, 3))
        self.register_buffer("count", torch.tensor(41))
        self.register_buffer("mask", torch.ones(WIDTH), persistent=False)
        draw = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            if parameter is not self.scale:
                values = torch.randn(parameter.shape, generator=draw) * 0.3
                parameter.data.copy_(values + (1 if parameter is self.norm.weight else 0))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden = self.norm(self.embedding(tokens)) * self.mask.to(self.embedding.weight.dtype)
        hidden = functional.linear(torch.tanh(self.up(hidden)), self.fixed)
        logits = self.head(self.down(hidden) * self.scale).float()
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def groups(self, lr: float, weight_decay: float) -> list[dict[str, object]]:
        """Two parameter groups: matrices with weight decay, everything else without. Frozen ones are in neither."""
        trainable = [p for p in self.parameters() if p.requires_grad]
        return [
            {"params": [p for p in trainable if p.dim() > 1], "lr": lr, "weight_decay": weight_decay},
            {"params": [p for p in trainable if p.dim() <= 1], "lr": lr / 2, "weight_decay": 0.0},
        ]


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets of a rank in a step, int64 of shape [4, 6]."""
    draw = torch.Generator().manual_seed(1000 * step + rank)
    tokens = torch.randint(0, VOCABULARY, (4, 7), generator=draw)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
