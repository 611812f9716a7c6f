"""Copies between device and host: two operators, so that a meter at the dispatcher can count every byte.

On a machine without a GPU the device is the CPU and both sides share one memory; the engine still copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Done, Handle
from zerobench.engine.state.pages import page_memory

#: The most copies to the host in flight, and the most of their bytes if there are several.
_COPIES, _BYTES = 64, 1 << 28


@torch.library.custom_op("zerobench::to_host", mutates_args={"host"})
def to_host(device: Tensor, host: Tensor, non_blocking: bool) -> None:
    """Copy ``device`` to ``host``, of the same length and dtype."""
    host.copy_(device, non_blocking=non_blocking)


@torch.library.custom_op("zerobench::to_device", mutates_args={"device"})
def to_device(host: Tensor, device: Tensor, non_blocking: bool) -> None:
    """Copy ``host`` to ``device``, of the same length and dtype."""
    device.copy_(host, non_blocking=non_blocking)


class Copies:
    """Copies values between one device and the host; on CUDA in a stream for each direction, beside computation.

    Every copy starts after the work already in the current stream. Copies in different directions have no order. The
    CPU waits for a copy with its handle, the current stream with :meth:`join`. A copy to the host keeps its memory on
    the device until it ends. So the CPU waits for the oldest ones before it starts too many: it can start copies faster
    than they end, and the device would hold the gradients of the whole model.

    Args:
        device: the device.
        pin: use page-locked host memory, which a CUDA copy needs to run in parallel.
    """

    def __init__(self, device: torch.device, pin: bool) -> None:
        cuda = device.type == "cuda"
        self.pinned = pin and cuda
        self._down: Any = _stream(device) if cuda else None
        self._up: Any = _stream(device) if cuda else None
        self._leaving: deque[tuple[int, Handle]] = deque()

    def memory(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Zeroed host memory for copies, [elements]; it starts on a page if it is pinned."""
        if not self.pinned:
            return torch.zeros(elements, dtype=dtype)
        return page_memory(elements * dtype.itemsize, pin=True).view(dtype)

    def down(self, device: Tensor, host: Tensor) -> Handle:
        """Start copying ``device`` to ``host``; wait for it before the host reads the values."""
        copy = self._start(self._down, to_host, device, host)
        self._leaving.append((device.nbytes, copy))
        while len(self._leaving) > 1 and (len(self._leaving) > _COPIES or sum(n for n, _ in self._leaving) > _BYTES):
            self._leaving.popleft()[1].wait()
        return copy

    def up(self, host: Tensor, device: Tensor, after: Handle | None = None) -> Handle:
        """Start copying ``host`` to ``device``, after the copy ``after`` if that writes to ``host``.

        Wait for it before the host changes the values.
        """
        return self._start(self._up, to_device, host, device, after)

    def _start(
        self,
        stream: Any,
        copy: Callable[[Tensor, Tensor, bool], None],
        source: Tensor,
        target: Tensor,
        after: Handle | None = None,
    ) -> Handle:
        """Run one of the two operators; the stream keeps the device's memory until the copy is over."""
        if stream is None:
            copy(source, target, False)
            return Done()
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        if isinstance(after, _OnStream):
            stream.wait_event(after.event)
        with torch.cuda.stream(stream):
            copy(source, target, self.pinned)
        (source if stream is self._down else target).record_stream(stream)
        return _OnStream(stream.record_event())

    def join(self, handle: Handle | None = None) -> None:
        """Make the current stream wait for that copy, or for every copy started so far."""
        if self._down is None:
            return
        current = torch.cuda.current_stream(self._down.device)  # the current device may be another one
        if handle is None:
            current.wait_stream(self._down)
            current.wait_stream(self._up)
        elif isinstance(handle, _OnStream):
            current.wait_event(handle.event)


def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class _OnStream:
    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def wait(self) -> None:
        self.event.synchronize()
