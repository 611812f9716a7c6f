"""Memory: bytes resident in tensors, undeclared tensors, and peaks.

Sizes are those of storages: the memory that an engine has allocated, not the size of its views.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.profiler import ProfilerActivity, profile, record_function

from zerobench.tensors import unwrapped


def resident(tensors: Iterable[Tensor]) -> int:
    """Bytes of the distinct storages behind ``tensors``; of a DTensor, those of its local part."""
    return sum(_storages(tensors).values())


_STATES = {"parameters", "gradients", "optimizer"}


def resident_states(states: Mapping[str, Iterable[Tensor]]) -> dict[str, int]:
    """Bytes of each state that ``Subject.resident`` names.

    Raises:
        TypeError: it names others, or lacks one.
    """
    if not isinstance(states, Mapping) or set(states) != _STATES:
        given = ", ".join(map(repr, states)) if isinstance(states, Mapping) else f"a {type(states).__name__}"
        raise TypeError(f"resident() gave {given or 'nothing'}; expected tensors by {', '.join(sorted(_STATES))}")
    return {state: resident(tensors) for state, tensors in states.items()}


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes by address of every storage that occupies memory."""
    found = {}
    for tensor in unwrapped(tensors):
        if not is_lazy(tensor) and not tensor.is_meta:
            storage = tensor.untyped_storage()
            if size := storage.nbytes():
                found[storage.data_ptr()] = size
    return found


def pinned() -> int:
    """Bytes of pinned host memory in use, rounded up as torch's allocator does."""
    return int(torch.cuda.host_memory_stats()["active_bytes.current"])


def live_tensors(*, collected: bool = True) -> list[Tensor]:
    """Every tensor that Python can reach in this process, after a garbage collection unless ``collected`` is false.

    A tensor is not found if only C++ holds it (saved for backward, for example).
    """
    if collected:
        gc.collect()
    return _tensors(gc.get_objects())


def _tensors(objects: Iterable[object]) -> list[Tensor]:
    # By type(): isinstance asks some objects for their class, and they answer with a deprecation warning.
    return [item for item in objects if issubclass(type(item), Tensor)]  # type: ignore[misc]


class LivingTensors:
    """Every tensor that Python can reach, at any time inside the ``with`` block, as :func:`live_tensors` finds it.

    That function goes through all objects of the process, hundreds of thousands. Here each look goes through those of
    the youngest generation: the collector moves objects to an older one in a collection alone, before which it calls.
    """

    def __init__(self) -> None:
        self._known: dict[int, ReferenceType[Tensor]] = {}

    def __enter__(self) -> Self:
        self._know(live_tensors())
        gc.callbacks.append(self._collects)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.callbacks.remove(self._collects)

    def now(self) -> list[Tensor]:
        """The tensors."""
        enabled = gc.isenabled()
        gc.disable()  # a collection would add to what this goes through
        self._know(_tensors(gc.get_objects(generation=0)))
        found = [tensor for each in self._known.values() if (tensor := each()) is not None]
        self._known = {id(tensor): ref(tensor) for tensor in found}
        if enabled:
            gc.enable()
        return found

    def _collects(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._know(_tensors(gc.get_objects(generation=0)))

    def _know(self, tensors: Iterable[Tensor]) -> None:
        self._known |= {id(tensor): ref(tensor) for tensor in tensors}


def in_cycles() -> int:
    """Bytes of the tensors that only a garbage collection frees; the next one does.

    Disable the collector before the steps in question. A tensor that C++ still holds does not count.
    """
    before = gc.get_debug()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(before)
    size = resident(item for item in gc.garbage if issubclass(type(item), Tensor))
    gc.garbage.clear()
    return size


@dataclass(frozen=True)
class Stray:
    """An undeclared storage; shape and dtype are those of the first tensor found on it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int


def unattributed(known: Iterable[Tensor]) -> list[Stray]:
    """The storages alive in this process that back none of the ``known`` tensors, largest first."""
    seen = set(_storages(known))
    strays = []
    for tensor in unwrapped(live_tensors()):
        for address, size in _storages([tensor]).items():
            if address not in seen:
                seen.add(address)
                strays.append(Stray(tuple(tensor.shape), tensor.dtype, size))
    return sorted(strays, key=lambda stray: -stray.bytes)


class ParameterPeak:
    """The peak of a model's resident parameters over all collectives, in ``bytes``.

    Give :meth:`observe` to a :class:`~zerobench.meters.traffic.TrafficMeter`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.bytes = 0
        self._model = model

    def observe(self, collective: str) -> None:
        """Measure the parameters now; the name of the collective is ignored."""
        self.bytes = max(self.bytes, resident(self._model.parameters()))


class PeakMeter:
    """The allocator's peak inside the ``with`` block, in ``bytes`` above the amount allocated at the block's start.

    On the CPU ``added`` has, for each :meth:`restart`, the peak up to the next one, above the amount allocated then.

    On CUDA ``reserved`` is the peak of the device memory that the caching allocator reserved, above the block's start;
    elsewhere None.

    On the CPU it is torch's own allocator, through the profiler; on CUDA the caching allocator of the current device.
    Neither sees memory that torch did not allocate. On the CPU, freeing a block from before the ``with`` counts as
    nothing: enter the block before building the subject, and call :meth:`restart` at the start of the peak.
    Unreachable objects are freed first.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.bytes = 0
        self.added: list[int] = []
        self.reserved: int | None = None
        self._device = device
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        gc.collect()  # otherwise a closed subject in a cycle counts at the start and may be freed before the peak
        if self._device == "cuda":
            torch.cuda.empty_cache()  # so that only memory in use is reserved
            self._start = torch.cuda.memory_allocated()
            self._reserved = torch.cuda.memory_reserved()
            self.restart()
        else:
            self._stack.enter_context(_every_thread_counts())
            self._profile = self._stack.enter_context(profile(activities=[ProfilerActivity.CPU], profile_memory=True))
        return self

    def restart(self) -> None:
        """Reset the peak to the amount allocated now."""
        if self._device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            torch.empty(1)  # an event, so that the total is current
            with record_function(_RESTART):
                pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if self._device == "cuda":
            self.bytes = torch.cuda.max_memory_allocated() - self._start
            self.reserved = torch.cuda.max_memory_reserved() - self._reserved
        else:
            spans = _peaks(self._profile)
            self.bytes = spans[-1].most
            self.added = [each.most - each.first for each in spans[1:]]


_RESTART = "zerobench: restart of the peak"


@contextmanager
def _every_thread_counts() -> Iterator[None]:
    """Make the allocator's total follow all threads.

    The profiler watches some threads only. gloo's own threads are often the last to hold a sent tensor: if they free
    it, its bytes would count for ever. One switch of torch's native library corrects the total; there is no other way
    to set it.
    """
    library = ctypes.CDLL(str(next(Path(torch.__file__).parent.glob("lib/libc10.*"))))
    switch = ctypes.c_bool.in_dll(library, "FLAGS_caffe2_report_cpu_memory_usage")
    before, switch.value = switch.value, True
    try:
        yield
    finally:
        switch.value = before


@dataclass
class _Span:
    """The time from a restart of the peak to the next one: the bytes allocated at its beginning, and at most."""

    first: int
    most: int


def _peaks(finished: profile) -> list[_Span]:
    """Walk the allocator's events in time; each holds its block, the added bytes, and the total after it."""
    inner: Any = finished.profiler
    start, now, spans = None, 0, [_Span(0, 0)]
    ours: set[int] = set()
    for event in sorted(_flat(inner.kineto_results.experimental_event_tree()), key=lambda event: event.start_time_ns):
        if event.name == _RESTART:
            spans.append(_Span(now, now))
        elif event.name == "[memory]":
            block = event.extra_fields
            start = block.total_allocated - block.alloc_size if start is None else start
            if block.alloc_size > 0:
                ours.add(block.ptr)
            elif block.ptr in ours:
                ours.remove(block.ptr)
            else:  # older than the watch: it was never added, and torch may even have another block's size for it
                start += block.alloc_size
            now = block.total_allocated - start
            spans[-1].most = max(spans[-1].most, now)
    return spans


def _flat(events: Iterable[Any]) -> Iterator[Any]:
    """The events and their children; an explicit stack, because calls nest deeper than Python recurses."""
    waiting = list(events)
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        yield event
