"""Copies between device and host: two operators, so that whoever counts at the dispatcher sees every byte.

On a machine without a GPU the device is the CPU and both sides are one memory; the copies are real there as well.
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
    """Carries values between one device and the host; on CUDA on a stream of its own, beside what is computed.

    Every copy starts after what the current stream has been given so far. The CPU waits for a copy by its handle, the
    current stream by :meth:`join`.

    Args:
        device: the other side.
        pin: use page-locked host memory, without which a CUDA copy does not run beside anything.
    """

    def __init__(self, device: torch.device, pin: bool) -> None:
        cuda = device.type == "cuda"
        self.pinned = pin and cuda
        self._stream = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]

    def memory(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Host memory to copy from and to, [elements], zeros; it starts on a page where it is pinned."""
        return torch.zeros(elements, dtype=dtype, pin_memory=self.pinned)

    def down(self, device: Tensor, host: Tensor) -> Handle:
        """Start copying ``device`` to ``host``; to be waited for before the host reads it."""
        return self._start(to_host, device, host, device)

    def up(self, host: Tensor, device: Tensor) -> Handle:
        """Start copying ``host`` to ``device``; to be waited for before the host writes to it again."""
        return self._start(to_device, host, device, device)

    def _start(
        self, copy: Callable[[Tensor, Tensor, bool], None], source: Tensor, target: Tensor, device: Tensor
    ) -> Handle:
        """Run one of the two operators, ``device`` being the side whose memory the stream must keep."""
        if self._stream is None:
            copy(source, target, False)
            return Done()
        self._stream.wait_stream(torch.cuda.current_stream(device.device))
        with torch.cuda.stream(self._stream):
            copy(source, target, self.pinned)
        device.record_stream(self._stream)
        return _OnStream(self._stream.record_event())

    def join(self, handle: Handle | None = None) -> None:
        """What the current stream is given from now on runs after that copy, or after every one started so far."""
        if self._stream is None:
            return
        current = torch.cuda.current_stream(self._stream.device)  # which need not be that of the current device
        if handle is None:
            current.wait_stream(self._stream)
        elif isinstance(handle, _OnStream):
            current.wait_event(handle.event)


class _OnStream:
    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def wait(self) -> None:
        self.event.synchronize()
