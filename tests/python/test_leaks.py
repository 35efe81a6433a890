"""Nothing grows: ten thousand steps, two hundred engines. Minutes; ZERO_TEST_SLOW=1 runs it (make test-full)."""

from __future__ import annotations

import gc
import os

import models
import pytest
import torch
from ranks import run

import zerotorch

pytestmark = pytest.mark.skipif("ZERO_TEST_SLOW" not in os.environ, reason="ZERO_TEST_SLOW=1 runs it: minutes")

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW"},
    "zero_optimization": {"stage": 3},
    "steps_per_print": 10**9,
}


def resident() -> int:
    from zerotorch import _C

    return _C.resident_nbytes()


def steps(count: int) -> tuple[int, int]:
    model = torch.nn.Sequential(torch.nn.Linear(9, 17), torch.nn.Tanh(), torch.nn.Linear(17, 3))
    engine, optimizer, _, scheduler = zerotorch.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={**CONFIG, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100}}},
    )
    x = torch.ones(2, 9)
    before = 0
    for step in range(count):
        if step == count // 10:
            gc.collect()
            before = resident()
        engine.backward(engine(x).square().mean())
        engine.step()
    gc.collect()
    after = resident()
    engine.destroy()
    return before, after


def test_ten_thousand_steps() -> None:
    for before, after in run(2, steps, 10_000, timeout_s=900):
        assert after < before + 4 * 2**20


def engines(count: int) -> tuple[int, int]:
    before = 0
    for number in range(count):
        model = models.make()
        engine = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)[0]
        engine.backward(models.loss_of(engine, torch.zeros(1, 3, dtype=torch.long)))
        engine.step()
        del engine, model
        if number == count // 10:
            gc.collect()
            before = resident()
    gc.collect()
    return before, resident()


def test_two_hundred_engines() -> None:
    for before, after in run(2, engines, 200, timeout_s=900):
        assert after < before + 16 * 2**20
