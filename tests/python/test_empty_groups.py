"""Parameter groups without parameters, which Trainer makes of models that have only matrices."""

from __future__ import annotations

from typing import Any

import models
import pytest
import torch
from ranks import run

STEPS = 3


def groups(model: torch.nn.Module, where: int) -> list[dict[str, Any]]:
    trained = [p for p in model.parameters() if p.requires_grad]
    made: list[dict[str, Any]] = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": 0.1, "lr": 1e-2},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0, "lr": 3e-3},
    ]
    return [*made[:where], {"params": [], "weight_decay": 0.5, "lr": 1.0}, *made[where:]]


def compare(kind: str, where: int) -> tuple[list[float], list[float]]:
    """Losses of the engine and of plain torch, with rates that change and one more group at `where`."""
    import zerotorch

    curves = []
    for zero in (True, False):
        model = models.make()
        optimizer = getattr(torch.optim, kind)(groups(model, where))
        if zero:
            config = {
                "train_batch_size": 2,
                "gradient_clipping": 0,
                "zero_allow_untested_optimizer": True,
                "zero_optimization": {"stage": 3},
            }
            engine, optimizer, _, _ = zerotorch.initialize(model=model, optimizer=optimizer, config=config)
        losses = []
        for batch in [batches[0] for batches in models.micro_batches(STEPS, 1)]:
            for number, group in enumerate(optimizer.param_groups):
                group["lr"] *= 0.5 + 0.1 * number
            loss = models.loss_of(engine if zero else model, batch)
            engine.backward(loss) if zero else loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert len(optimizer.param_groups) == 3
        if zero:
            engine.destroy()
        curves.append(losses)
    return curves[0], curves[1]


@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("kind", ["AdamW", "NAdam"])
def test_trains_as_plain_torch(kind: str, where: int) -> None:
    for mine, plain in run(1, compare, kind, where):
        assert mine == pytest.approx(plain, rel=1e-6)


def nothing() -> str:
    import zerotorch

    model = models.make()
    optimizer = torch.optim.AdamW([{"params": []}])
    with pytest.raises(zerotorch.ConfigError) as error:
        zerotorch.initialize(model=model, optimizer=optimizer, config={"train_batch_size": 2})
    return str(error.value)


def test_nothing_to_train() -> None:
    assert run(1, nothing) == ["no parameter group has parameters: there is nothing to train"]
