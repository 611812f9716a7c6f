"""Process memory that is no tensor: numpy arrays, byte strings, buffers of libraries, maps without a file."""

from __future__ import annotations

import ctypes
import re
import time
from pathlib import Path

from zerobench.meters.memory import live_tensors, resident

#: Seconds in which other threads, such as gloo's, may still free the messages that they have sent.
_SETTLING = 0.2


class _Mallinfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``; ``hblkhd`` are bytes in blocks of their own mapping, ``uordblks`` all others in
    use."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def heap() -> int | None:
    """Bytes that malloc has given to this process and that are not freed; None if its C library does not say."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = _Mallinfo
    found = library.mallinfo2()
    return int(found.hblkhd + found.uordblks) or None


def shared() -> int:
    """Bytes in use that this process shares or may share, without a file on a drive: maps, which malloc does not know,
    and segments. 0 if the kernel does not say."""
    status = Path("/proc/self/status")
    found = re.search(r"^RssShmem:\s*(\d+) kB", status.read_text(), re.MULTILINE) if status.exists() else None
    return 1024 * int(found[1]) if found else 0


def beside_tensors() -> int | None:
    """Bytes in use on the heap and in shared memory beyond those of all tensors that Python can reach, once they no
    longer change."""
    before, now = -1, _beside()
    while now is not None and now != before:
        time.sleep(_SETTLING)
        before, now = now, _beside()
    return now


def _beside() -> int | None:
    tensors = resident(live_tensors())
    used = heap()
    return None if used is None else used + shared() - tensors
