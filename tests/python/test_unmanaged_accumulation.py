"""`managed_gradient_accumulation: false`: every step() updates with the backwards since the last one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run
from torch import nn

BACKWARDS = (2, 5, 3)  # of each step; the configuration says 4
MICRO_BATCH = 2


def make(stage: int, **more: Any) -> Any:
    import zerotorch

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    config = {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_accumulation_steps": 4,
        "managed_gradient_accumulation": False,
        "gradient_clipping": 0,
        "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
        "zero_optimization": {"stage": stage},
        **more,
    }
    return zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def batch(number: int) -> torch.Tensor:
    return torch.full((MICRO_BATCH, 4), 0.1 * number)


def plain(divisor: float | None) -> list[torch.Tensor]:
    """Weights of plain torch; each loss is divided by `divisor`, None: by the backwards of its step."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    number = 0
    for count in BACKWARDS:
        for _ in range(count):
            (model(batch(number)).mean() / (divisor or count)).backward()
            number += 1
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


def train(stage: int, ranks: int, by_program: bool) -> list[torch.Tensor]:
    import zerotorch

    engine = make(stage)
    assert not engine.managed_gradient_accumulation()
    assert (engine.train_batch_size(), engine.gradient_accumulation_steps()) == (4 * MICRO_BATCH * ranks, 4)
    number = 0
    for step, count in enumerate(BACKWARDS):
        for _ in range(count):
            loss = engine(batch(number)).mean()
            if by_program:
                engine.backward(loss / count, scale_wrt_gas=False)
            else:
                assert engine.backward(loss) == loss / 4
            number += 1
            assert not engine.is_gradient_accumulation_boundary()
        engine.step()
        assert engine.was_step_applied() and engine.global_steps == step + 1
        assert engine.global_samples == number * MICRO_BATCH * ranks
    weights = [zerotorch.utils.safe_get_full_fp32_param(parameter) for parameter in engine.module.parameters()]
    engine.destroy()
    return weights


@pytest.mark.parametrize("by_program", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_every_step_updates(stage: int, ranks: int, by_program: bool) -> None:
    wanted = plain(None if by_program else 4)
    for weights in run(ranks, train, stage, ranks, by_program):
        for one, other in zip(weights, wanted, strict=True):
            torch.testing.assert_close(one, other)


def refusals() -> None:
    from zerotorch.config import DeepSpeedConfig

    engine = make(2)
    with pytest.raises(AssertionError, match="set_gradient_accumulation_boundary.. is not supported"):
        engine.set_gradient_accumulation_boundary(True)
    with pytest.raises(AssertionError, match="coalesce_grad_reduction"), engine.coalesce_grad_reduction():
        pass
    engine.set_train_batch_size(6)
    assert (engine.gradient_accumulation_steps(), engine.train_batch_size()) == (3, 6)
    with pytest.raises(ValueError, match="a multiple of 2"):
        engine.set_train_batch_size(5)
    engine.destroy()
    with pytest.raises(ValueError, match="neither true nor false"):
        DeepSpeedConfig({"train_batch_size": 1, "managed_gradient_accumulation": "no"})
    with pytest.raises(ValueError, match="in_backward"):
        DeepSpeedConfig(
            {"train_batch_size": 1, "managed_gradient_accumulation": False, "zerotorch": {"update": "in_backward"}}
        )
    with pytest.raises(ValueError, match="train_batch_size is 7"):
        make(0, train_batch_size=7)


def test_what_it_cannot_be_used_with() -> None:
    run(1, refusals)


def inside_no_sync() -> int:
    engine = make(1)
    with engine.no_sync():
        engine.backward(engine(batch(1)).mean())
    engine.backward(engine(batch(2)).mean())
    engine.step()
    steps: int = engine.global_steps
    engine.destroy()
    return steps


def test_no_sync_changes_nothing() -> None:
    assert run(1, inside_no_sync) == [1]


def samples_after_a_load(folder: str) -> tuple[int, int, int]:
    engine = make(2)
    for _ in range(3):
        engine.backward(engine(batch(1)).mean())
    engine.step()
    engine.save_checkpoint(folder)
    engine.destroy()
    fresh = make(2)
    fresh.load_checkpoint(folder)
    managed = make(2, managed_gradient_accumulation=True)
    managed.load_checkpoint(folder)
    result = fresh.global_samples, fresh.gradient_accumulation_steps(), managed.gradient_accumulation_steps()
    fresh.destroy()
    managed.destroy()
    return result


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_checkpoint_keeps_the_samples(tmp_path: Path, ranks: int) -> None:
    assert run(ranks, samples_after_a_load, str(tmp_path)) == [(3 * MICRO_BATCH * ranks, 4, 4)] * ranks


_DROPS = """
import torch, zerotorch
module = torch.nn.Linear(4, 4)
config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 1}}
engine = zerotorch.initialize(model=module, config=config)[0]
for _ in range(2):
    engine.set_gradient_accumulation_boundary(False)
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()
    engine.zero_grad()
    engine.set_gradient_accumulation_boundary(True)
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()
assert engine.global_steps == 2
"""


def test_dropped_micro_batches_are_told_of_once() -> None:
    from support import python

    said = python("-c", _DROPS, ZERO_LOG_LEVEL="warning")
    assert said.returncode == 0, said.stderr
    assert said.stderr.count("has dropped the 1 micro-batches") == 1
    assert "an update was made of" not in said.stderr


_KEEPS = """
import torch, zerotorch
config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "optimizer": {"type": "AdamW"}}
engine = zerotorch.initialize(model=torch.nn.Linear(4, 4), config=config)[0]
for _ in range(4):
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()
    engine.optimizer.zero_grad()
assert engine.global_steps == 2
"""


def test_micro_batches_that_are_kept_are_told_of() -> None:
    """Plain torch would drop them."""
    from support import python

    said = python("-c", _KEEPS, ZERO_LOG_LEVEL="warning")
    assert said.returncode == 0, said.stderr
    assert said.stderr.count("keeps its 1 micro-batches") == 1
