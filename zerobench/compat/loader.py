"""Loaders: that of ``training_data``, with DeepSpeed's order of samples, and one that never ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset


class DeepSpeedDataLoader:
    """Batches of this rank's share of a dataset, in the order that DeepSpeed gives.

    Args:
        dataset: a map-style or an iterable dataset.
        batch_size: samples in a micro-batch.
        collate_fn: makes a batch of samples; by default torch's.
        rank: of this process.
        world: the number of ranks.
        data_sampler: replaces the DistributedSampler, which shuffles with seed 0.
        drop_last: leave a short last batch out.
        workers: processes that load.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        collate_fn: Callable[[list[Any]], Any] | None,
        *,
        rank: int,
        world: int,
        data_sampler: Any = None,
        drop_last: bool = False,
        workers: int = 0,
    ) -> None:
        if data_sampler is None and not isinstance(dataset, IterableDataset):
            data_sampler = DistributedSampler(dataset, num_replicas=world, rank=rank)
        self.dataset, self.batch_size, self.data_sampler = dataset, batch_size, data_sampler
        self._loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=data_sampler,
            collate_fn=collate_fn,
            drop_last=drop_last,
            num_workers=workers,
        )
        self._drop_last = drop_last
        self._running: Iterator[Any] | None = None

    def __iter__(self) -> DeepSpeedDataLoader:
        self._running = iter(self._loader)
        return self

    def __next__(self) -> Any:
        if self._running is None:
            iter(self)
        return next(self._running)  # type: ignore[arg-type]

    def __len__(self) -> int:
        """The number of micro-batches of this rank."""
        samples = len(self.data_sampler) if self.data_sampler is not None else len(self.dataset)
        return samples // self.batch_size if self._drop_last else math.ceil(samples / self.batch_size)

    @property
    def len(self) -> int:
        """The number of micro-batches of this rank."""
        return self.__len__()


class RepeatingLoader:
    """Starts a loader again whenever it ends."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.data_iter = iter(loader)

    def __iter__(self) -> RepeatingLoader:
        return self

    def __next__(self) -> Any:
        try:
            return next(self.data_iter)
        except StopIteration:
            self.data_iter = iter(self.loader)
            return next(self.data_iter)
