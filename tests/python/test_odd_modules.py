"""Modules with more than floating-point parameters: norms with statistics in 16 bits, quantised weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import run
from torch import nn


class Mine(nn.BatchNorm1d):
    """A program's own."""


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm1d(16),
    "without weights": lambda: nn.BatchNorm1d(16, affine=False),
    "subclass": lambda: Mine(16),
    "of sequences": lambda: nn.Sequential(nn.Unflatten(1, (16, 1)), nn.BatchNorm1d(16), nn.Flatten()),
    "instance": lambda: nn.Sequential(
        nn.Unflatten(1, (4, 4)), nn.InstanceNorm1d(4, affine=True, track_running_stats=True), nn.Flatten()
    ),
    "without statistics": lambda: nn.BatchNorm1d(16, track_running_stats=False),
}


def with_norm(name: str, half: str, stage: int) -> dict[str, torch.dtype]:
    import zerotorch

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), NORMS[name](), nn.ReLU(), nn.Linear(16, 2))
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        half: {"enabled": True},
        "zero_optimization": {"stage": stage},
    }
    engine: Any = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(engine.global_rank)).to(model[0].weight.dtype)
    for _ in range(3):
        engine.backward(engine(x).float().square().mean())
        engine.step()
    engine.eval()
    assert engine(x).isfinite().all()
    dtypes = {name.rpartition(".")[2]: buffer.dtype for name, buffer in model.named_buffers()}
    engine.destroy()
    return dtypes


@pytest.mark.parametrize("half", ["bf16", "fp16"])
@pytest.mark.parametrize("name", NORMS)
def test_norms_train_and_evaluate_in_16_bits(name: str, half: str) -> None:
    dtype = torch.bfloat16 if half == "bf16" else torch.float16
    for ranks, stage in ((1, 0), (2, 3)):
        for dtypes in run(ranks, with_norm, name, half, stage):
            assert dtypes.get("running_var", dtype) == dtype
            assert dtypes.get("num_batches_tracked", torch.int64) == torch.int64


class Quantised(nn.Module):
    """int8 weights with a scale, and an adapter that is trained."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(8, 8)
        scale = weight.abs().max() / 127
        self.weight = nn.Parameter((weight / scale).round().to(torch.int8), requires_grad=False)
        self.register_buffer("scale", scale)
        self.a = nn.Parameter(0.1 * torch.randn(2, 8))
        self.b = nn.Parameter(torch.zeros(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.weight.to(x.dtype) * self.scale).T + x @ self.a.T @ self.b.T


def quantised() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Quantised(), nn.Tanh(), Quantised())


def train_quantised(stage: int, folder: str) -> bool:
    import zerotorch
    from zerotorch.zero import GatheredParameters

    def make() -> tuple[nn.Module, Any]:
        model = quantised()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        config = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_clipping": 0,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        }
        return model, zerotorch.initialize(model=model, optimizer=optimizer, config=config)[0]

    def values(model: nn.Module) -> dict[str, torch.Tensor]:
        with GatheredParameters(list(model.parameters())):
            return {name: p.detach().clone() for name, p in model.named_parameters()}

    model, engine = make()
    weight = model[0].weight.detach().clone()
    world, rank = engine.world_size, engine.global_rank
    plain = quantised()
    optimizer = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], lr=1e-2)
    for step in range(3):
        batches = [torch.randn(2, 8, generator=torch.Generator().manual_seed(10 * step + r)) for r in range(world)]
        optimizer.zero_grad()
        for batch in batches:
            (plain(batch).square().mean() / world).backward()
        optimizer.step()
        engine.backward(engine(batches[rank]).square().mean())
        engine.step()
    got = values(model)
    assert got["0.weight"].dtype == torch.int8
    assert torch.equal(got["0.weight"], weight)
    for name, p in plain.named_parameters():
        torch.testing.assert_close(got[name], p.detach(), rtol=0, atol=2e-6)
    whole = engine._zero3_consolidated_16bit_state_dict()
    assert (whole is None) == (rank != 0)
    assert whole is None or torch.equal(whole["0.weight"], weight)
    # They are in checkpoints: a module with other ones gets them back.
    engine.save_checkpoint(folder)
    again, second = make()
    with torch.no_grad():
        again[0].weight.zero_()
    second.load_checkpoint(folder)
    same = all(torch.equal(value, got[name]) for name, value in values(again).items())
    engine.destroy()
    second.destroy()
    return same


@pytest.mark.parametrize("stage", [0, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2])
def test_quantised_weights_stay_what_they_are(ranks: int, stage: int, tmp_path: Any) -> None:
    assert all(run(ranks, train_quantised, stage, str(tmp_path)))


def train_with(operation: str) -> list[list[float]]:
    import zerotorch

    torch.manual_seed(0)
    model, plain = nn.Linear(3, 2), nn.Linear(3, 2)
    plain.load_state_dict(model.state_dict())
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0,
        "gradient_allreduce_op": operation,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 2},
    }
    engine: Any = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    world = engine.world_size
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    norms = []
    for step in range(2):
        optimizer.zero_grad()
        for micro in range(2):
            rows = [torch.randn(1, 3, generator=torch.Generator().manual_seed(9 * step + 3 * micro + r)) for r in range(2)]
            for row in rows[:world]:
                (plain(row).square().mean() / 2 / (world if operation == "mean" else 1)).backward()
            engine.backward(engine(rows[engine.global_rank]).square().mean())
            engine.step()
        wanted = torch.nn.utils.clip_grad_norm_(plain.parameters(), 1e9).item()
        norms.append([engine.get_global_grad_norm(), wanted])
        optimizer.step()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.detach(), q.detach(), rtol=0, atol=1e-6)
    engine.destroy()
    return norms


@pytest.mark.parametrize("operation", ["mean", "sum"])
def test_gradients_are_averaged_or_summed_over_ranks(operation: str) -> None:
    for got, wanted in run(2, train_with, operation)[0]:
        assert got == pytest.approx(wanted, rel=1e-5)
