"""Contracts that DeepSpeed's programs rely on. Nothing here knows zerotorch: ZERO_ORACLE=deepspeed runs the same tests
with the real DeepSpeed (0.19.8, on the CPU), which has to pass them as well."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run
from torch import nn

NAME = os.environ.get("ZERO_ORACLE", "zerotorch")
STAGES = [1, 2, 3]


def deepspeed() -> Any:
    return importlib.import_module(NAME)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 11)
        self.down = nn.Linear(11, 1)
        self.unused_name = "of the module"

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x))) * scale


def model() -> Model:
    torch.manual_seed(5)
    return Model()


def config(stage: int, **more: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 1e-2, "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0.1, "torch_adam": True},
        },
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        **more,
    }


def make(stage: int, **more: Any) -> Any:
    made = model()
    trainable = [p for p in made.parameters() if p.requires_grad]
    return deepspeed().initialize(model=made, model_parameters=trainable, config=config(stage, **more))


def loss_of(engine: Any, step: int) -> torch.Tensor:
    rank = int(os.environ["RANK"])
    x = torch.sin(torch.arange(12.0).view(2, 6) * (step + 1) + rank)
    return engine(x, scale=2.0).square().mean()


def curve(stage: int, steps: int, micro_batches: int = 1, **more: Any) -> list[float]:
    engine = make(stage, gradient_accumulation_steps=micro_batches, **more)[0]
    losses = []
    for step in range(steps * micro_batches):
        loss = loss_of(engine, step)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def plain(steps: int, ranks: int, micro_batches: int = 1) -> list[list[float]]:
    made = model()
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
    losses: list[list[float]] = [[] for _ in range(ranks)]
    for step in range(steps * micro_batches):
        for rank in range(ranks):
            x = torch.sin(torch.arange(12.0).view(2, 6) * (step + 1) + rank)
            loss = made(x, scale=2.0).square().mean()
            losses[rank].append(loss.item())
            (loss / (ranks * micro_batches)).backward()
        if (step + 1) % micro_batches == 0:
            optimizer.step()
            optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("stage", [0, *STAGES])
def test_the_curve_of_plain_torch(stage: int, micro_batches: int) -> None:
    wanted = plain(3, 2, micro_batches)
    for rank, losses in enumerate(run(2, curve, stage, 3, micro_batches)):
        assert losses == pytest.approx(wanted[rank], rel=2e-5)


def counters(stage: int) -> None:
    engine, optimizer, loader, scheduler = make(stage, gradient_accumulation_steps=2)
    assert isinstance(engine, nn.Module) and loader is None and scheduler is None
    assert optimizer is engine.optimizer and isinstance(engine.module, Model)
    assert engine.unused_name == "of the module"
    assert (engine.train_batch_size(), engine.train_micro_batch_size_per_gpu()) == (4, 2)
    assert engine.gradient_accumulation_steps() == 2
    assert engine.zero_optimization_stage() == stage
    assert (engine.global_steps, engine.micro_steps, engine.skipped_steps) == (0, 0, 0)
    loss = loss_of(engine, 0)
    assert engine.backward(loss).item() == pytest.approx(loss.item() / 2)
    assert not engine.is_gradient_accumulation_boundary()
    engine.step()
    assert (engine.global_steps, engine.micro_steps) == (0, 1)
    assert engine.is_gradient_accumulation_boundary()
    engine.backward(loss_of(engine, 1))
    engine.step()
    assert (engine.global_steps, engine.micro_steps) == (1, 2)
    assert engine.was_step_applied()
    assert engine.get_lr() == [1e-2] and float(engine.get_global_grad_norm()) > 0
    assert engine.global_rank == 0 and engine.world_size == 1 and engine.local_rank == 0


@pytest.mark.parametrize("stage", STAGES)
def test_counters(stage: int) -> None:
    run(1, counters, stage)


def misuse(stage: int) -> None:
    with pytest.raises(AssertionError):
        deepspeed().initialize(model=None, config=config(stage))
    engine = make(stage)[0]
    with pytest.raises(AssertionError):
        engine.backward(engine(torch.ones(2, 6)))  # no scalar
    if stage >= 2:
        with pytest.raises(AssertionError, match="incompatible with gradient partitioning"):
            with engine.no_sync():
                pass


@pytest.mark.parametrize("stage", STAGES)
def test_misuse_is_asserted(stage: int) -> None:
    run(1, misuse, stage)


def own_backward(stage: int) -> list[float]:
    engine = make(stage)[0]
    losses = []
    for step in range(3):
        loss = loss_of(engine, step)
        loss.backward()
        engine.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("stage", STAGES)
def test_a_backward_of_the_programs_own(stage: int) -> None:
    wanted = plain(3, 2)
    for rank, losses in enumerate(run(2, own_backward, stage)):
        assert losses == pytest.approx(wanted[rank], rel=2e-5)


def callers_boundaries(stage: int) -> list[float]:
    """As accelerate has it: the caller says where a window ends, and divides the loss."""
    engine = make(stage, gradient_accumulation_steps=3)[0]
    losses = []
    for step in range(9):
        last = step % 3 == 2
        engine.set_gradient_accumulation_boundary(is_boundary=last)
        loss = loss_of(engine, step)
        engine.backward(loss / 3, scale_wrt_gas=False)
        if last:
            engine.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("stage", STAGES)
def test_boundaries_of_the_caller(stage: int) -> None:
    wanted = plain(3, 2, 3)
    for rank, losses in enumerate(run(2, callers_boundaries, stage)):
        assert losses == pytest.approx(wanted[rank], rel=2e-5)


def schedule(stage: int) -> list[float]:
    section = {
        "type": "WarmupDecayLR",
        "params": {
            "total_num_steps": 6,
            "warmup_min_lr": 0.001,
            "warmup_max_lr": 0.01,
            "warmup_num_steps": 3,
            "warmup_type": "linear",
        },
    }
    engine, optimizer, _, scheduler = make(stage, scheduler=section)
    assert type(scheduler).__name__ == "WarmupDecayLR" and engine.lr_scheduler is scheduler
    rates = []
    for step in range(5):
        engine.backward(loss_of(engine, step))
        engine.step()
        rates.append(optimizer.param_groups[0]["lr"])
        assert engine.get_lr() == [rates[-1]]
    return rates


def test_a_schedule_of_the_configuration() -> None:
    (rates,) = run(1, schedule, 2)
    assert rates == pytest.approx([0.001, 0.004, 0.007, 0.01, 0.007])


def live_rates(stage: int) -> list[bool]:
    engine, optimizer, _, _ = make(stage)
    engine.backward(loss_of(engine, 0))
    engine.step()
    before = deepspeed().utils.safe_get_full_fp32_param(engine.module.up.weight).clone()
    optimizer.param_groups[0]["lr"] = 0.0
    engine.backward(loss_of(engine, 1))
    engine.step()
    after = deepspeed().utils.safe_get_full_fp32_param(engine.module.up.weight)
    return [torch.equal(before, after)]


@pytest.mark.parametrize("stage", STAGES)
def test_rates_are_read_at_every_update(stage: int) -> None:
    assert run(2, live_rates, stage) == [[True]] * 2


def gathered() -> list[Any]:
    zero = deepspeed().zero
    engine = make(3)[0]
    weight = engine.module.up.weight
    facts: list[Any] = [hasattr(weight, "ds_id"), weight.ds_numel, tuple(weight.ds_shape)]
    with zero.GatheredParameters(weight, modifier_rank=0):
        facts.append(tuple(weight.shape))
        if engine.global_rank == 0:
            weight.data.fill_(0.25)
    with zero.GatheredParameters([weight, None, engine.module.up.bias]):
        facts.append(weight.data.unique().tolist())
        weight.data.fill_(3.0)
    with zero.GatheredParameters(engine.module.parameters()):
        facts.append(weight.data.unique().tolist())
    return facts


def test_gathered_parameters() -> None:
    assert run(2, gathered) == [[True, 66, (11, 6), (11, 6), [0.25], [0.25]]] * 2


def built_in_init() -> list[float]:
    with deepspeed().zero.Init(config_dict_or_path=config(3)):
        made = model()
    engine = deepspeed().initialize(model=made, model_parameters=made.parameters(), config=config(3))[0]
    losses = []
    for step in range(3):
        loss = loss_of(engine, step)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def test_a_model_built_in_init() -> None:
    wanted = plain(3, 2)
    for rank, losses in enumerate(run(2, built_in_init)):
        assert losses == pytest.approx(wanted[rank], rel=2e-5)


def checkpoint(folder: str, stage: int) -> list[float]:
    engine = make(stage)[0]
    for step in range(2):
        engine.backward(loss_of(engine, step))
        engine.step()
    engine.save_checkpoint(folder, client_state={"epoch": 7})
    wanted = [loss_of(engine, 2).item()]
    engine.backward(loss_of(engine, 2))
    engine.step()
    wanted.append(loss_of(engine, 3).item())
    other = make(stage)[0]
    path, state = other.load_checkpoint(folder)
    assert "global_step2" in path and state["epoch"] == 7 and other.global_steps == 2
    got = [loss_of(other, 2).item()]
    other.backward(loss_of(other, 2))
    other.step()
    got.append(loss_of(other, 3).item())
    assert got == pytest.approx(wanted, rel=1e-6)
    nowhere = other.load_checkpoint(os.path.join(folder, "nowhere"))
    assert nowhere == (None, None)
    assert Path(folder, "latest").read_text().strip() == "global_step2"
    return got


@pytest.mark.parametrize("stage", STAGES)
def test_checkpoints(tmp_path: Path, stage: int) -> None:
    run(2, checkpoint, str(tmp_path), stage)


def consolidated() -> list[Any]:
    engine = make(3, zero_optimization={"stage": 3, "stage3_gather_16bit_weights_on_model_save": True})[0]
    state = engine._zero3_consolidated_16bit_state_dict()
    return [None if state is None else {name: tuple(value.shape) for name, value in state.items()}]


def test_a_consolidated_state_dict_is_on_rank_0() -> None:
    (first,), (second,) = run(2, consolidated)
    assert first == {"up.weight": (11, 6), "up.bias": (11,), "down.weight": (1, 11), "down.bias": (1,)}
    assert not second


def whole_values(stage: int) -> list[Any]:
    utils = deepspeed().utils
    engine = make(stage)[0]
    weight = engine.module.up.weight
    engine.backward(loss_of(engine, 0))
    gradient = utils.safe_get_full_grad(weight)
    engine.step()
    moments = utils.safe_get_full_optimizer_state(weight, "exp_avg")
    return [tuple(gradient.shape), gradient.norm().item(), torch.allclose(moments, 0.1 * gradient, atol=1e-7)]


@pytest.mark.parametrize("stage", STAGES)
def test_whole_gradients_and_states(stage: int) -> None:
    made = model()
    for rank in range(2):
        x = torch.sin(torch.arange(12.0).view(2, 6) + rank)
        (made(x, scale=2.0).square().mean() / 2).backward()
    assert made.up.weight.grad is not None
    norm = made.up.weight.grad.norm().item()
    for shape, got, moments in run(2, whole_values, stage):
        assert shape == (11, 6) and got == pytest.approx(norm, rel=1e-5) and moments
