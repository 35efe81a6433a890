"""Activation checkpointing: the same gradients, computed twice, and what `configure` accepts."""

import json
import pathlib
from typing import Any

import pytest
import torch
import zerotorch.checkpointing as checkpointing
from zerotorch.errors import NotBuiltError, UsageError
from zerotorch.runtime.activation_checkpointing import checkpointing as implementation


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implementation, "_settings", implementation._Settings())
    monkeypatch.setattr(implementation, "_configured", False)
    checkpointing.get_cuda_rng_tracker().reset()


class Part(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear = torch.nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: torch.Tensor, *, factor: float = 1.0) -> torch.Tensor:
        self.calls += 1
        return torch.nn.functional.dropout(self.linear(x), 0.5) * factor


def gradients(run: Any) -> tuple[Part, list[torch.Tensor | None]]:
    part, x = Part(), torch.ones(2, 4, requires_grad=True)
    torch.manual_seed(5)
    run(part, x).sum().backward()
    return part, [x.grad, part.linear.weight.grad]


@pytest.mark.parametrize("in_cpu", [False, True])
@pytest.mark.parametrize("name", ["checkpoint", "non_reentrant_checkpoint"])
def test_gradients_are_those_without(name: str, in_cpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = []
    original = torch.autograd.graph.save_on_cpu
    monkeypatch.setattr(torch.autograd.graph, "save_on_cpu", lambda: entered.append(1) or original())
    checkpointing.configure(None, checkpoint_in_cpu=in_cpu)
    part, got = gradients(lambda part, x: getattr(checkpointing, name)(part, x, factor=2.0))
    plain, wanted = gradients(lambda part, x: part(x, factor=2.0))
    assert (part.calls, plain.calls) == (2, 1) and bool(entered) == in_cpu
    assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))


def test_works_without_configure_and_in_evaluation() -> None:
    assert not checkpointing.is_configured()
    with torch.no_grad():
        part = Part()
        checkpointing.checkpoint(part, torch.ones(1, 4))
    checkpointing.reset()
    assert part.calls == 1
    checkpointing.configure(None)
    assert checkpointing.is_configured()


def test_takes_the_section_of_a_configuration(tmp_path: pathlib.Path) -> None:
    config = {"train_batch_size": 1, "activation_checkpointing": {"cpu_checkpointing": True, "number_checkpoints": 3}}
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(config))
    for form in (config, str(file)):
        checkpointing.configure(None, deepspeed_config=form, profile=True)
        settings = implementation._settings
        assert settings.cpu_checkpointing and settings.profile and settings.number_checkpoints == 3
    checkpointing.configure(None, deepspeed_config=config, checkpoint_in_cpu=False)
    assert not implementation._settings.cpu_checkpointing


class ModelParallel:
    def get_model_parallel_world_size(self) -> int:
        return 2


def test_partitioning() -> None:
    checkpointing.configure(None, partition_activations=True, contiguous_checkpointing=True, num_checkpoints=2)
    checkpointing.configure(ModelParallel())
    with pytest.raises(NotBuiltError, match="partition_activations"):
        checkpointing.configure(ModelParallel(), partition_activations=True)
    with pytest.raises(AssertionError, match="needs partition_activations"):
        checkpointing.configure(None, contiguous_checkpointing=True)
    with pytest.raises(UsageError, match="needs num_checkpoints"):
        checkpointing.configure(None, contiguous_checkpointing=True, partition_activations=True)
    checkpointing.partition_activations_in_checkpoint(True)
    checkpointing.set_num_layers(2)


def test_streams_of_random_numbers() -> None:
    tracker = checkpointing.get_cuda_rng_tracker()
    tracker.add("one", 11)
    torch.manual_seed(0)
    with tracker.fork("one"):
        first = torch.rand(2)
    states = tracker.get_states()
    with tracker.fork("one"):
        second = torch.rand(2)
    default = torch.rand(2)
    assert torch.equal(torch.cat([first, second]), torch.rand(4, generator=torch.Generator().manual_seed(11)))
    assert torch.equal(default, torch.rand(2, generator=torch.Generator().manual_seed(0)))
    tracker.set_states(states)
    with tracker.fork("one"):
        assert torch.equal(torch.rand(2), second)
    for name, seed in (("one", 12), ("two", 11)):
        with pytest.raises(UsageError, match="already"):
            tracker.add(name, seed)
    with pytest.raises(UsageError, match="no stream"), tracker.fork("none"):
        pass
    checkpointing.model_parallel_cuda_manual_seed(4)
    assert list(tracker.get_states()) == ["model-parallel-rng"] and torch.initial_seed() == 4
