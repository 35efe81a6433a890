"""A program's optimizer of any class over the engine's fp32 shards."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch

#: What checkpoints have under these names is something else.
_TAKEN = ("weight", "buffer", "gradient_sum", "random_state")
#: Widened in checkpoints without loss.
_NARROW = (torch.float16, torch.bfloat16)
_NUMBERS = (torch.int64, torch.float32, torch.float64)


class OverShards:
    """A client's optimizer of any class over the engine's shards: one that treats elements one by one gets right
    numbers.

    Its hyper-parameters are those of the client's groups, whenever they are asked for, and what its step() writes into
    its groups is written into these. Its states are as checkpoints can hold them.
    """

    def __init__(self, client: torch.optim.Optimizer, shards: list[list[torch.Tensor]]) -> None:
        self._client = client
        self._inner = object.__new__(type(client))
        self._inner.__dict__.update(client.__dict__)
        for name in ("step", "train", "eval"):  # a scheduler's, or the engine's, which lead to the client
            self._inner.__dict__.pop(name, None)
        self._inner.state = defaultdict(dict)
        self._inner.param_groups = [{"params": tensors} for tensors in shards]
        self._numbers: set[str] | None = None
        # An optimizer made of others keeps no states itself. Its groups are theirs, and so they step over the shards.
        self._parts = list(_optimizers_in(vars(client)))

    def _owners_of_states(self) -> list[Any]:
        return [self._inner.state, *(part.state for part in self._parts)]

    def _states(self) -> Iterator[tuple[torch.Tensor, dict[str, Any]]]:
        for states in self._owners_of_states():
            yield from states.items()

    def _sources(self) -> list[dict[str, Any]]:
        return [group for group in self._client.param_groups if group["params"]]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        groups = self._inner.param_groups
        sources = self._sources()
        for index, group in enumerate(groups):
            # The last group is of parameters that the client does not hold: there are none.
            source = sources[min(index, len(sources) - 1)]
            group.update({key: value for key, value in source.items() if key != "params"})
        return groups

    @property
    def state(self) -> _SavedStates:
        if self._numbers is None:
            self._numbers = _names_of_numbers(self._states())
        return _SavedStates(self._owners_of_states(), self._numbers)

    def step(self) -> None:
        self.call("step")
        self._numbers = None  # it may have made other states

    def call(self, method: str) -> None:
        """A method of the client's class, over the shards."""
        with self._lent():
            getattr(self._inner, method)()

    @contextlib.contextmanager
    def _lent(self) -> Iterator[None]:
        """The client's groups themselves have the shards, as hooks and the optimizer may change them."""
        groups = self.param_groups
        lent = [(source, source["params"]) for source in self._sources()]
        try:
            for (source, _), group in zip(lent, groups, strict=False):
                source["params"] = group["params"]
            self._inner.param_groups = [*self._client.param_groups, *groups[len(lent) :]]
            yield
        finally:
            self._inner.param_groups = groups
            for source, parameters in lent:
                source["params"] = parameters

    def problem_of_states(self) -> str | None:
        """Why a checkpoint cannot hold a state that there is now. Local."""
        for shard, state in self._states():
            saved = self.state[shard]
            for name in state:
                problem = _problem_of(name, saved[name], shard)
                if problem is not None:
                    return f"its state '{name}' {problem}"
        return None


def _optimizers_in(value: Any) -> Iterator[torch.optim.Optimizer]:
    """Optimizers that another one has as attributes, also in lists and dictionaries."""
    if isinstance(value, torch.optim.Optimizer):
        yield value
        value = vars(value)
    if isinstance(value, dict):
        value = [inner for name, inner in value.items() if name not in ("state", "param_groups", "defaults")]
    if isinstance(value, (list, tuple)):
        for inner in value:
            yield from _optimizers_in(inner)


def _names_of_numbers(states: Iterator[tuple[torch.Tensor, dict[str, Any]]]) -> set[str]:
    """Of states that are one number, in a tensor with dimensions. A shard of one element does not tell."""
    return {
        name
        for shard, state in states
        if shard.numel() != 1
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and value.dim() > 0 and value.numel() == 1
    }


def _problem_of(name: str, value: Any, shard: torch.Tensor) -> str | None:
    if name in _TAKEN:
        return "has the name of something else in a checkpoint"
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return None
    if not isinstance(value, torch.Tensor):
        return f"is {value!r:.40}"
    if value.dim() == 0:
        return None if value.dtype in _NUMBERS else f"is a number of {value.dtype}"
    if value.shape == shard.shape and value.dtype == torch.float32:
        return None
    return f"is a {value.dtype} tensor of shape {tuple(value.shape)} for {shard.numel()} elements"


class _SavedStates:
    """The optimizer's states by shard, as the engine saves and loads them."""

    def __init__(self, owners: list[Any], numbers: set[str]) -> None:
        self._owners = owners
        self._numbers = numbers

    def __contains__(self, shard: object) -> bool:
        return any(shard in states for states in self._owners)

    def __getitem__(self, shard: torch.Tensor) -> _SavedState:
        return _SavedState(self._owner(shard)[shard], self._numbers)

    def pop(self, shard: torch.Tensor) -> Any:
        return self._owner(shard).pop(shard)

    def _owner(self, shard: torch.Tensor) -> Any:
        return next((states for states in self._owners if shard in states), self._owners[0])


class _SavedState(MutableMapping[str, Any]):
    """One parameter's: numbers without dimensions, and other tensors in fp32. What is loaded takes the shape and dtype of
    what it replaces."""

    def __init__(self, state: dict[str, Any], numbers: set[str]) -> None:
        self._state = state
        self._numbers = numbers

    def __getitem__(self, name: str) -> Any:
        value = self._state[name]
        if not isinstance(value, torch.Tensor):
            return value
        if name in self._numbers and value.numel() == 1:
            value = value.reshape(())
        return value.float() if value.dtype in _NARROW else value

    def __setitem__(self, name: str, value: Any) -> None:
        before = self._state.get(name)
        if isinstance(value, torch.Tensor) and isinstance(before, torch.Tensor) and before.numel() == value.numel():
            value = value.reshape(before.shape).to(before.dtype)
        self._state[name] = value

    def __delitem__(self, name: str) -> None:
        del self._state[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)
