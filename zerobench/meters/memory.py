"""Memory: bytes resident in tensors, tensors that nobody declared, and peaks.

Sizes are those of storages: what an engine has allocated, not what its views show.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def resident(tensors: Iterable[Tensor]) -> int:
    """Bytes of the distinct storages behind ``tensors``; of a DTensor, those of its local part."""
    return sum(_storages(tensors).values())


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes by address of every storage that occupies memory."""
    storages = (tensor.untyped_storage() for tensor in _plain(tensors) if not tensor.is_meta)
    return {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}


def _plain(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    for tensor in tensors:
        if is_traceable_wrapper_subclass(tensor):
            parts = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
            yield from _plain(part for part in parts if isinstance(part, Tensor))  # not a DTensor's device mesh
        else:
            yield tensor


def live_tensors() -> list[Tensor]:
    """Every tensor that Python can reach in this process, after a garbage collection.

    A tensor that only C++ holds (saved for backward, say) is not seen.
    """
    gc.collect()
    # By type(): isinstance asks some objects for their class, and they answer with a deprecation warning.
    return [item for item in gc.get_objects() if issubclass(type(item), Tensor)]


@dataclass(frozen=True)
class Stray:
    """A storage that nobody declared; shape and dtype are those of the first tensor found on it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int


def unattributed(known: Iterable[Tensor]) -> list[Stray]:
    """The storages alive in this process that lie behind none of the ``known`` tensors, largest first."""
    seen = set(_storages(known))
    strays = []
    for tensor in _plain(live_tensors()):
        for address, size in _storages([tensor]).items():
            if address not in seen:
                seen.add(address)
                strays.append(Stray(tuple(tensor.shape), tensor.dtype, size))
    return sorted(strays, key=lambda stray: -stray.bytes)


class ParameterPeak:
    """The most bytes of a model's parameters that were resident at any collective, in ``bytes``.

    Give :meth:`observe` to a :class:`~zerobench.meters.traffic.TrafficMeter`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.bytes = 0
        self._model = model

    def observe(self, collective: str) -> None:
        """Look at the parameters now; which collective it is makes no difference."""
        self.bytes = max(self.bytes, resident(self._model.parameters()))


class PeakMeter:
    """The allocator's peak inside the ``with`` block, in ``bytes`` above what it held at the block's start.

    On the CPU it is torch's own allocator, through the profiler, which does not see that something older than its
    watch is freed. So enter the block before what is to be measured is built, and call :meth:`restart` where the
    peak is to count from. On CUDA it is the caching allocator of the current device.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.bytes = 0
        self._device = device
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._device == "cuda":
            self._start = torch.cuda.memory_allocated()
            self.restart()
        else:
            self._profile = self._stack.enter_context(profile(activities=[ProfilerActivity.CPU], profile_memory=True))
        return self

    def restart(self) -> None:
        """Forget the peak so far: it becomes what is allocated now."""
        if self._device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            with record_function(_RESTART):
                pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if self._device == "cuda":
            self.bytes = torch.cuda.max_memory_allocated() - self._start
        else:
            self.bytes = _peak(self._profile)


_RESTART = "zerobench: restart of the peak"


def _peak(finished: profile) -> int:
    """Walk the allocator's events in time: each carries the bytes that it added, or, below zero, gave back."""
    results = finished.profiler.kineto_results
    allocated = peak = 0
    for event in sorted(results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            allocated += event.nbytes()
            peak = max(peak, allocated)
        elif event.name() == _RESTART:
            peak = allocated
    return peak
