"""A data loader without end."""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

Batch = TypeVar("Batch")


class RepeatingLoader(Generic[Batch]):
    """Goes through `loader` again and again. Raises StopIteration where it has no batches. Local."""

    def __init__(self, loader: Iterable[Batch]) -> None:
        self.loader = loader
        self.data_iter = iter(loader)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        try:
            return next(self.data_iter)
        except StopIteration:
            self.data_iter = iter(self.loader)
            return next(self.data_iter)
