"""plan(): what training takes, before it."""

from __future__ import annotations

from typing import Any

import models
import pytest
import torch
from ranks import run

import zerotorch

CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
    "bf16": {"enabled": True},
}


def ledger(stage: int) -> dict[str, int]:
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    config = {**CONFIG, "zero_optimization": {"stage": stage}}
    planned = zerotorch.plan(model, config, ranks=2)
    engine = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    for _ in range(2):
        engine.backward(engine(torch.ones(2, 64, dtype=torch.bfloat16)).float().square().mean())
        engine.step()
    held = {kind: use["peak"] for kind, use in engine.memory_report().items()}
    engine.destroy()
    assert "MB in training" in str(planned)
    return {
        kind: held[kind] - planned.rank[kind] for kind in ("parameters", "master weights", "optimizer", "gradients")
    }


@pytest.mark.parametrize("stage", [1, 3])
def test_the_plan_is_what_the_engine_holds(stage: int) -> None:
    # The plan is of the rank that holds most.
    differences = run(2, ledger, stage)
    for kind in differences[0]:
        assert max(difference[kind] for difference in differences) == 0, differences


def test_a_plan_of_a_number_and_of_a_model_without_memory() -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(1000, 1000, bias=False)
    config = {**CONFIG, "zero_optimization": {"stage": 3}}
    planned = zerotorch.plan(model, config, ranks=4)
    assert planned.parameters == 10**6 and planned.node_shared
    large = zerotorch.plan(7 * 10**9, config, ranks=64, ranks_per_host=8)
    assert large.hosts == 8 and large.rank["optimizer"] == pytest.approx(8 * 7e9 / 64, rel=0.02)
    with pytest.raises(zerotorch.ConfigError, match="stage"):
        zerotorch.plan(10, {**CONFIG, "zero_optimization": {"stage": 9}})
