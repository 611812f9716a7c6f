"""Host memory in whole pages, page-locked for CUDA on request."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import torch
from torch import Tensor

#: For direct I/O, memory, offsets and lengths are multiples of this.
PAGE = 4096


def whole_pages(size: int) -> int:
    """``size`` bytes rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


def page_memory(size: int, *, pin: bool) -> Tensor:
    """Zeroed memory, uint8 [size], that starts on a page; page-locked for CUDA if ``pin`` is set.

    torch's own pinned memory is rounded up to a power of two, so it would take up to twice as much. If page-locking
    fails, torch raises its error for CUDA, which says "out of memory" if the system does not allow to lock more.
    """
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # limits on the process's memory ignore shared memory
    return torch.frombuffer((_Locked if pin else mmap.mmap)(-1, size, private), dtype=torch.uint8)


class _Locked(mmap.mmap):
    """Page-locked memory; a copy between it and a CUDA device runs in parallel with the host."""

    def __init__(self, *_: int) -> None:
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self))
        torch.cuda.check_error(int(_runtime().cudaHostRegister(self._address, len(self), 0)))

    def __del__(self) -> None:  # before the memory is unmapped
        _runtime().cudaHostUnregister(self._address)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
