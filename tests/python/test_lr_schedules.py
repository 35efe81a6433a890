"""Rates and betas are DeepSpeed's to the bit; the goldens are those of the C++ schedules."""

import argparse
import json
import pathlib
import pickle
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LRScheduler
from zerotorch.errors import UsageError
from zerotorch.runtime import lr_schedules

GOLDEN = pathlib.Path(__file__).parents[1] / "data/deepspeed_golden.json"
CASES = [one for one in json.loads(GOLDEN.read_text())["schedules"] if one["type"] in lr_schedules.VALID_LR_SCHEDULES]


def adam(lr: float = 1e-3, groups: int = 1) -> torch.optim.AdamW:
    return torch.optim.AdamW([{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(groups)], lr=lr)


def make(case: dict[str, Any], optimizer: torch.optim.Optimizer, **more: Any) -> Any:
    return getattr(lr_schedules, case["type"])(optimizer, **case["params"], **more)


def test_every_schedule_has_a_golden() -> None:
    assert {case["type"] for case in CASES} == set(lr_schedules.VALID_LR_SCHEDULES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["type"])
def test_rates_and_betas_are_deepspeeds_to_the_bit(case: dict[str, Any]) -> None:
    optimizer = adam(case["lr"])
    schedule = make(case, optimizer)
    for rate, betas in zip(case["rates"], case["betas"], strict=True):
        group = optimizer.param_groups[0]
        assert group["lr"] == rate == schedule.get_last_lr()[0]
        assert list(group["betas"]) == betas
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["type"])
def test_goes_on_from_its_state(case: dict[str, Any]) -> None:
    first = make(case, adam(case["lr"]))
    for _ in range(7):
        first.step()
    optimizer = adam(case["lr"])
    second = make(case, optimizer)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.state_dict() == {"last_batch_iteration": 6}
    second.step()
    assert optimizer.param_groups[0]["lr"] == case["rates"][8]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["type"])
def test_goes_to_an_iteration(case: dict[str, Any]) -> None:
    optimizer = adam(case["lr"])
    schedule = make(case, optimizer)
    schedule.step(20)
    assert schedule.last_batch_iteration == 20 and optimizer.param_groups[0]["lr"] == case["rates"][21]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["type"])
def test_resumed_ones_set_nothing_before_they_are_stepped(case: dict[str, Any]) -> None:
    optimizer = adam(0.125)
    schedule = make(case, optimizer, last_batch_iteration=4)
    assert optimizer.param_groups[0]["lr"] == 0.125 and optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    with pytest.raises(UsageError, match="need to call step"):
        schedule.get_last_lr()
    schedule.step()
    assert schedule.last_batch_iteration == 5


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["type"])
def test_is_a_torch_schedule_that_leaves_the_optimizer_alone(case: dict[str, Any]) -> None:
    optimizer = adam()
    step = optimizer.step
    schedule = make(case, optimizer)
    assert isinstance(schedule, LRScheduler) and optimizer.step == step
    assert "initial_lr" not in optimizer.param_groups[0] and schedule.optimizer is optimizer
    assert type(schedule).__name__ in lr_schedules.VALID_LR_SCHEDULES


def test_rates_by_group() -> None:
    optimizer = adam(groups=2)
    schedule = lr_schedules.WarmupLR(optimizer, warmup_min_lr=[0.0, 1.0], warmup_max_lr=(1.0, 3.0), warmup_num_steps=2)
    schedule.step(5)
    assert schedule.get_last_lr() == [1.0, 3.0] == [group["lr"] for group in optimizer.param_groups]
    with pytest.raises(ValueError, match="expected 2 values of warmup_min_lr, one for each parameter group, got 3"):
        lr_schedules.WarmupLR(optimizer, warmup_min_lr=[0.0, 1.0, 2.0])


def test_warmup_to_the_optimizers_own_rate() -> None:
    optimizer = adam(0.25)
    schedule = lr_schedules.WarmupLR(optimizer, warmup_num_steps=3)
    assert optimizer.param_groups[0]["lr"] == 0.0
    schedule.step(3)
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_rates_that_are_tensors_are_written_in_place() -> None:
    rate = torch.tensor(0.5)
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    schedule = lr_schedules.WarmupCosineLR(optimizer, total_num_steps=10, warmup_num_steps=2)
    held = optimizer.param_groups[0]["lr"]
    schedule.step(2)
    assert optimizer.param_groups[0]["lr"] is held and 0 < held.item() <= 0.5


def test_one_cycle_without_betas_cycles_rates_only() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9)
    schedule = lr_schedules.OneCycle(optimizer, cycle_min_lr=0.0, cycle_max_lr=1.0, cycle_first_step_size=2)
    schedule.step()
    assert schedule.get_mom() is None and optimizer.param_groups[0]["momentum"] == 0.9
    assert optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(
    "kind, params, name",
    [
        ("WarmupLR", {"warmup_num_steps": 0}, "warmup_num_steps"),
        ("WarmupDecayLR", {"total_num_steps": 5, "warmup_num_steps": 2.5}, "warmup_num_steps"),
        ("WarmupCosineLR", {"total_num_steps": 5, "warmup_num_steps": -1}, "warmup_num_steps"),
        ("LRRangeTest", {"lr_range_test_step_size": 0}, "lr_range_test_step_size"),
        ("OneCycle", {"cycle_min_lr": 0, "cycle_max_lr": 1, "cycle_first_step_size": 0}, "cycle_first_step_size"),
        ("OneCycle", {"cycle_min_lr": 0, "cycle_max_lr": 1, "cycle_second_step_size": -1}, "cycle_second_step_size"),
    ],
)
def test_bad_counts(kind: str, params: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        getattr(lr_schedules, kind)(adam(), **params)


def test_finds_the_optimizer_in_a_wrapper() -> None:
    optimizer = adam()
    assert lr_schedules.WarmupLR(argparse.Namespace(optimizer=optimizer)).optimizer is optimizer
    with pytest.raises(TypeError, match="Namespace"):
        lr_schedules.WarmupLR(argparse.Namespace())


def test_tuning_arguments() -> None:
    parser = lr_schedules.add_tuning_arguments(argparse.ArgumentParser())
    options = parser.parse_args(["--lr_schedule", "OneCycle", "--cycle_max_lr", "0.5", "--cycle_momentum"])
    assert (options.lr_schedule, options.cycle_max_lr, options.cycle_momentum) == ("OneCycle", 0.5, True)
    assert (options.warmup_type, options.lr_range_test_staircase, options.decay_step_size) == ("log", False, 1000)


def test_counts_that_are_whole_numbers_of_another_type() -> None:
    cycle = lr_schedules.OneCycle(adam(), 0.0, 1.0, cycle_first_step_size=2.0)  # type: ignore[arg-type]
    cycle.step()
    assert cycle.get_last_lr() == [0.5]


def test_attributes_and_overrides_count() -> None:
    """As in DeepSpeed: each rate is computed from what the schedule is at that moment."""
    schedule = lr_schedules.WarmupDecayLR(adam(), total_num_steps=20, warmup_num_steps=5)
    longer = lr_schedules.WarmupDecayLR(adam(), total_num_steps=40, warmup_num_steps=5)
    for step in range(8):
        schedule.step()
        longer.step()
        if step == 2:
            schedule.total_num_steps = 40
    assert schedule.get_last_lr() == longer.get_last_lr()

    class Half(lr_schedules.WarmupCosineLR):
        def get_lr_ratio(self) -> float:
            return 0.5

    class Quarter(lr_schedules.WarmupLR):
        def _get_gamma(self) -> float:
            return 0.25

    class Triple(lr_schedules.LRRangeTest):
        def _get_increase(self) -> float:
            return 3.0

    rate = adam().param_groups[0]["lr"]
    for made, wanted in (
        (Half(adam(), total_num_steps=10, warmup_num_steps=5), rate / 2),
        (Quarter(adam(), warmup_max_lr=0.1, warmup_num_steps=5), 0.025),
        (Triple(adam(), lr_range_test_min_lr=0.1), 0.1 * 3.0),
    ):
        made.step()
        assert made.get_last_lr() == [wanted]


def test_schedules_can_be_copied_and_meet_new_groups() -> None:
    for made in (
        lr_schedules.WarmupLR(adam(), warmup_num_steps=5),
        lr_schedules.OneCycle(adam(), 0.0, 1.0),
        lr_schedules.LRRangeTest(adam()),
    ):
        made.step()
        copied = pickle.loads(pickle.dumps(made))
        copied.step()
        made.step()
        assert copied.get_last_lr() == made.get_last_lr()
    optimizer = adam()
    schedule = lr_schedules.WarmupLR(optimizer, warmup_num_steps=5)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))], "lr": 0.5})
    schedule.step()
    assert optimizer.param_groups[1]["lr"] == 0.5
