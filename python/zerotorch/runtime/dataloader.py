"""The data loader of initialize(training_data=) and engine.deepspeed_io()."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, SequentialSampler


Batch = TypeVar("Batch")


class DeepSpeedDataLoader:
    """Batches of this rank's part of a dataset. Training takes samples in an order that is shuffled anew in each pass,
    the same on all ranks; other routes in the dataset's order.

    Iterating over it begins a pass; len() is the batches of one.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        rank: int,
        world_size: int,
        is_training: bool,
        data_sampler: Any = None,
        collate_fn: Any = None,
        workers: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.epoch = 0
        if data_sampler is None and not isinstance(dataset, IterableDataset):
            if is_training or world_size > 1:
                data_sampler = DistributedSampler(dataset, world_size, rank, shuffle=is_training)
            else:
                data_sampler = SequentialSampler(dataset)
        self.data_sampler = data_sampler
        self.dataloader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=data_sampler,
            collate_fn=collate_fn,
            num_workers=workers,
            drop_last=drop_last,
        )
        self._iterator: Iterator[Any] | None = None

    def __iter__(self) -> DeepSpeedDataLoader:
        if isinstance(self.data_sampler, DistributedSampler):
            self.data_sampler.set_epoch(self.epoch)
        self.epoch += 1
        self._iterator = iter(self.dataloader)
        return self

    def __next__(self) -> Any:
        if self._iterator is None:
            iter(self)
        assert self._iterator is not None
        return next(self._iterator)

    def __len__(self) -> int:
        return len(self.dataloader)


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
