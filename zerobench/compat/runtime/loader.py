"""Loaders: that of ``training_data``, with DeepSpeed's order of samples, and one that never ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler

from zerobench.engine.errors import ConfigError


class DeepSpeedDataLoader:
    """Batches of this rank's share of a dataset, in the order that DeepSpeed gives.

    Args:
        dataset: a map-style or an iterable dataset.
        batch_size: samples in a micro-batch.
        pin_memory: whether batches lie in pinned memory, if there is a GPU.
        local_rank: if it is negative, the order is random on each rank by itself.
        tput_timer: its ``start()`` is called before each batch.
        collate_fn: makes a batch of samples; by default torch's.
        num_local_io_workers: processes that load; none if it is None.
        data_sampler: replaces the DistributedSampler, which shuffles with seed 0.
        data_parallel_world_size: the number of ranks; by default that of the process group.
        data_parallel_rank: of this process; by default that in the process group.
        dataloader_drop_last: leave a short last batch out.
        deepspeed_dataloader_config: its ``curriculum_learning`` is refused.

    Raises:
        ConfigError: curriculum learning is on.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        pin_memory: bool,
        local_rank: int,
        tput_timer: Any,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_local_io_workers: int | None = None,
        data_sampler: Any = None,
        data_parallel_world_size: int | None = None,
        data_parallel_rank: int | None = None,
        dataloader_drop_last: bool = False,
        deepspeed_dataloader_config: dict[str, Any] | None = None,
    ) -> None:
        self.deepspeed_dataloader_config = deepspeed_dataloader_config or {}
        if self.deepspeed_dataloader_config.get("curriculum_learning"):
            raise ConfigError("curriculum learning is not offered; change the data in the script")
        if data_sampler is None and not isinstance(dataset, IterableDataset):
            if local_rank < 0:
                data_sampler = RandomSampler(dataset)
            else:
                data_sampler = DistributedSampler(dataset, data_parallel_world_size, data_parallel_rank)
        self.dataset, self.batch_size, self.data_sampler = dataset, batch_size, data_sampler
        self.collate_fn, self.tput_timer, self.pin_memory = collate_fn, tput_timer, pin_memory
        self.num_local_io_workers, self.dataloader_drop_last = num_local_io_workers or 0, dataloader_drop_last
        self.curriculum_learning_enabled = False
        self.dataloader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=data_sampler,
            collate_fn=collate_fn,
            drop_last=dataloader_drop_last,
            num_workers=self.num_local_io_workers,
            pin_memory=pin_memory and torch.cuda.is_available(),
        )
        self._running: Iterator[Any] | None = None

    def __iter__(self) -> DeepSpeedDataLoader:
        self._running = iter(self.dataloader)
        return self

    def __next__(self) -> Any:
        if self.tput_timer:
            self.tput_timer.start()
        if self._running is None:
            iter(self)
        return next(self._running)  # type: ignore[arg-type]

    def __len__(self) -> int:
        """The number of micro-batches of this rank."""
        samples = len(self.data_sampler) if self.data_sampler is not None else len(self.dataset)
        return samples // self.batch_size if self.dataloader_drop_last else math.ceil(samples / self.batch_size)

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
