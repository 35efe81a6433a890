"""engine.local_rank, whatever the device."""

from __future__ import annotations

import operator
from typing import Any


class LocalRank(str):
    """A rank's number on its host that ``tensor.to()`` takes for the device its engine is on.

    DeepSpeed's programs send batches to ``engine.local_rank``, the number of a GPU. Here it is the device's name to torch
    and a number to all else: it prints, compares, counts and indexes as one.
    """

    _number: int

    def __new__(cls, number: int, device: str = "cpu") -> LocalRank:
        made = super().__new__(cls, device)
        made._number = number
        return made

    def __int__(self) -> int:
        return self._number

    __index__ = __int__

    def __float__(self) -> float:
        return float(self._number)

    def __bool__(self) -> bool:
        return self._number != 0

    def __hash__(self) -> int:
        return hash(self._number)

    def __repr__(self) -> str:
        return repr(self._number)

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self._number, spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalRank, (self._number, str.__str__(self))


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, LocalRank) else value


def _compare(name: str) -> Any:
    operate = getattr(operator, name)

    def compare(self: LocalRank, other: Any) -> Any:
        if isinstance(other, str) and not isinstance(other, LocalRank):
            return NotImplemented if name not in ("__eq__", "__ne__") else (name == "__ne__")
        return operate(int(self), _number(other))

    return compare


def _compute(name: str) -> Any:
    operate = getattr(operator, name)
    return lambda self, *others: operate(int(self), *(_number(other) for other in others))


def _compute_reflected(name: str) -> Any:
    operate = getattr(operator, name)
    return lambda self, other: operate(_number(other), int(self))


for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(LocalRank, _name, _compare(_name))
for _name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow"):
    setattr(LocalRank, f"__{_name}__", _compute(f"__{_name}__"))
    setattr(LocalRank, f"__r{_name}__", _compute_reflected(f"__{_name}__"))
for _name in ("__neg__", "__abs__"):
    setattr(LocalRank, _name, _compute(_name))
