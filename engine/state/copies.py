"""Copies between device and host: two operators, so that a meter at the dispatcher can count every byte.

On a machine without a GPU the device is the CPU and both sides share one memory; the engine still copies.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Done, Handle


@torch.library.custom_op("zerobench::to_host", mutates_args={"host"})
def to_host(device: Tensor, host: Tensor, non_blocking: bool) -> None:
    """Copy ``device`` to ``host``, of the same length and dtype."""
    host.copy_(device, non_blocking=non_blocking)


@torch.library.custom_op("zerobench::to_device", mutates_args={"device"})
def to_device(host: Tensor, device: Tensor, non_blocking: bool) -> None:
    """Copy ``host`` to ``device``, of the same length and dtype."""
    device.copy_(host, non_blocking=non_blocking)


class Copies:
    """Copies values between one device and the host; on CUDA in its own stream, in parallel with computation.

    Every copy starts after the work already in the current stream. The CPU waits for a copy with its handle, the
    current stream with :meth:`join`.

    Args:
        device: the device.
        pin: use page-locked host memory, which a CUDA copy needs to run in parallel.
    """

    def __init__(self, device: torch.device, pin: bool) -> None:
        cuda = device.type == "cuda"
        self.pinned = pin and cuda
        self._stream = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]

    def memory(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Zeroed host memory for copies, [elements]; it starts on a page if it is pinned."""
        return torch.zeros(elements, dtype=dtype, pin_memory=self.pinned)

    def down(self, device: Tensor, host: Tensor) -> Handle:
        """Start copying ``device`` to ``host``; wait for it before the host reads the values."""
        return self._start(to_host, device, host, device)

    def up(self, host: Tensor, device: Tensor) -> Handle:
        """Start copying ``host`` to ``device``; wait for it before the host changes the values."""
        return self._start(to_device, host, device, device)

    def _start(
        self, copy: Callable[[Tensor, Tensor, bool], None], source: Tensor, target: Tensor, device: Tensor
    ) -> Handle:
        """Run one of the two operators; the stream keeps the memory of ``device`` until the copy is over."""
        if self._stream is None:
            copy(source, target, False)
            return Done()
        self._stream.wait_stream(torch.cuda.current_stream(device.device))
        with torch.cuda.stream(self._stream):
            copy(source, target, self.pinned)
        device.record_stream(self._stream)
        return _OnStream(self._stream.record_event())

    def join(self, handle: Handle | None = None) -> None:
        """Make the current stream wait for that copy, or for every copy started so far."""
        if self._stream is None:
            return
        current = torch.cuda.current_stream(self._stream.device)  # the current device may be another one
        if handle is None:
            current.wait_stream(self._stream)
        elif isinstance(handle, _OnStream):
            current.wait_event(handle.event)


class _OnStream:
    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def wait(self) -> None:
        self.event.synchronize()
