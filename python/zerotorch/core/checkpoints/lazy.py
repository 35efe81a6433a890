"""Tensors that are made when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor


class LazyTensor:
    """A tensor in files: shape and dtype are known, `contiguous()` reads it, anew each time."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, read: Callable[[], Tensor]) -> None:
        self.shape = torch.Size(shape)
        self.dtype = dtype
        self._read = read

    def contiguous(self) -> Tensor:
        """The tensor, in memory of its own, on the CPU. Throws CheckpointError."""
        return self._read()

    def numel(self) -> int:
        return math.prod(self.shape)

    def to(self, dtype: torch.dtype) -> LazyTensor:
        """The same as another dtype."""
        return self if dtype == self.dtype else LazyTensor(self.shape, dtype, lambda: self._read().to(dtype))

    def __repr__(self) -> str:
        return f"LazyTensor(shape={tuple(self.shape)}, dtype={self.dtype})"


class LazyTensors(Mapping[str, Tensor]):
    """{name: tensor} that holds no tensor: each look-up reads one. Iterate over `items()` to have one at a time."""

    def __init__(self, tensors: Mapping[str, LazyTensor]) -> None:
        self.lazy = dict(tensors)

    def __getitem__(self, name: str) -> Tensor:
        return self.lazy[name].contiguous()

    def __contains__(self, name: object) -> bool:
        return name in self.lazy

    def __iter__(self) -> Iterator[str]:
        return iter(self.lazy)

    def __len__(self) -> int:
        return len(self.lazy)

    def __repr__(self) -> str:
        return f"LazyTensors({self.lazy!r})"
