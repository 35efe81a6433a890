"""The engine from Python: the curve of plain torch, and the same bits on any number of ranks."""

from __future__ import annotations

from typing import Any

import models
import pytest
import torch
from ranks import run

PER_STEP = 12  # micro-batches of an update, over all ranks
STEPS = 3


def config(stage: int, ranks: int, **more: Any) -> dict[str, Any]:
    return {
        "train_batch_size": 2 * PER_STEP,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": PER_STEP // ranks,
        "gradient_clipping": 0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
        "zero_optimization": {"stage": stage},
        "zerotorch": {"seed": 3},
        **more,
    }


def train(stage: int, ranks: int, more: dict[str, Any], way: str = "engine") -> tuple[dict[int, float], str]:
    """Losses of this rank's micro-batches by their number, and a hash of weights and states."""
    import zerotorch

    model = models.make()
    engine, optimizer, _, _ = zerotorch.initialize(
        model=model, model_parameters=model.parameters(), config=config(stage, ranks, **more)
    )
    losses = {}
    number = 0
    for batches in models.micro_batches(STEPS, PER_STEP):
        for i, batch in enumerate(batches):
            if i % ranks == engine.global_rank:
                losses[number + i] = one_micro_batch(engine, batch, way, last=i >= PER_STEP - ranks)
        number += PER_STEP
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    tensors = {name: engine._core.full_weight(name) for name in names}
    for name in names:
        tensors[f"{name}.m"] = engine._core.full_optimizer_state(name, "exp_avg")
    engine.destroy()
    return losses, models.digest(tensors)


def one_micro_batch(engine: Any, batch: torch.Tensor, way: str, last: bool) -> float:
    loss = models.loss_of(engine, batch)
    if way == "engine":
        engine.backward(loss)
        engine.step()
    elif way == "own backward":
        engine.zero_grad()  # as loops do that were written for one micro-batch
        engine.scale(loss).backward()
        engine.step()
    elif way == "moves to where it is":  # as trainers do at the end of an epoch
        engine.backward(loss)
        engine.module.cpu()
        engine.module.to("cpu", torch.float32)
        engine.module.double().float()
        engine.step()
    elif way == "caller's boundaries":
        engine.set_gradient_accumulation_boundary(is_boundary=last)
        engine.backward(loss)
        if last:
            engine.step()
    elif way == "caller divides":
        steps = engine.gradient_accumulation_steps()
        engine.backward(loss / steps, scale_wrt_gas=False)
        engine.step()
    return loss.item()


def merged(results: list[tuple[dict[int, float], str]]) -> tuple[list[float], str]:
    losses: dict[int, float] = {}
    for part, _ in results:
        losses.update(part)
    assert len({digest for _, digest in results}) == 1
    return [losses[i] for i in sorted(losses)], results[0][1]


@pytest.fixture(scope="module")
def one_rank() -> dict[str, tuple[list[float], str]]:
    """The curve of one rank at stage 0, by precision."""
    return {name: merged(run(1, train, 0, 1, more)) for name, more in PRECISIONS.items()}


PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8}},
}
STORES = {"auto": {}, "copying": {"zerotorch": {"seed": 3, "store": "copying"}}}


def test_fp32_is_plain_torch(one_rank: Any) -> None:
    losses, model = models.train_plain(torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}, STEPS, PER_STEP)
    # Forward and backward are the same operators; the update's order of operations is torch's to a rounding.
    assert one_rank["fp32"][0] == pytest.approx(losses, rel=2e-6)
    assert one_rank["fp32"][0][:PER_STEP] == losses[:PER_STEP]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_same_bits_on_any_number_of_ranks(one_rank: Any, stage: int, ranks: int) -> None:
    assert merged(run(ranks, train, stage, ranks, {})) == one_rank["fp32"]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("store", list(STORES))
@pytest.mark.parametrize("stage", [1, 3])
def test_same_bits_in_16_bits(one_rank: Any, stage: int, store: str, precision: str) -> None:
    assert merged(run(2, train, stage, 2, {**PRECISIONS[precision], **STORES[store]})) == one_rank[precision]


@pytest.mark.parametrize("way", ["own backward", "caller's boundaries", "moves to where it is"])
@pytest.mark.parametrize("stage", [1, 3])
def test_ways_to_write_a_step(one_rank: Any, stage: int, way: str) -> None:
    assert merged(run(2, train, stage, 2, {}, way)) == one_rank["fp32"]


def test_the_caller_may_divide_the_loss(one_rank: Any) -> None:
    losses, _ = merged(run(3, train, 2, 3, {}, "caller divides"))  # by 4, which changes no bit
    assert losses == one_rank["fp32"][0]
