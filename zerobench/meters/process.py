"""Process memory that is no tensor: numpy arrays, byte strings, buffers of libraries, maps of the process's own."""

from __future__ import annotations

import ctypes
import re
import resource
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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


def _malloc() -> _Mallinfo | None:
    """The account of malloc; None if the C library does not give it."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = _Mallinfo
    found: _Mallinfo = library.mallinfo2()
    return found if found.hblkhd + found.uordblks else None


@dataclass(frozen=True)
class _Map:
    """One line of ``/proc/self/smaps``: its addresses, its rights, its file or name, and its bytes in use."""

    start: int
    stop: int
    rights: str
    name: str
    used: int

    @property
    def shares(self) -> bool:
        """Whether what the process writes there is in memory or a file that another process may map."""
        return self.rights[1] == "w" and self.rights[3] == "s"

    @property
    def private(self) -> bool:
        """Whether it is memory of the process alone, of no file, that neither the main heap nor the main stack is."""
        return self.rights[:2] == "rw" and self.rights[3] == "p" and not self.name

    @property
    def size(self) -> int:
        """Its bytes, in use or not."""
        return self.stop - self.start

    @property
    def guards(self) -> bool:
        """Whether it may be the page that ends the stack of a thread, which lies below the stack."""
        return self.rights.startswith("---p") and self.size <= _GUARD


def shared() -> int:
    """Bytes in use that this process shares or may share, and may write to: maps, also of files, which malloc does not
    know, and segments. 0 if the kernel does not say."""
    return _shared(_maps())


def _shared(maps: Iterable[_Map]) -> int:
    return sum(each.used for each in maps if each.shares)


def _private(maps: Iterable[_Map]) -> int:
    """Bytes of the maps that the process has to itself, but for malloc's heaps and the stacks of threads. Sizes, since
    malloc's account has sizes: it counts a block that nothing has touched."""
    found, before = 0, None
    for each in maps:
        if each.private and each.start % _ARENA:
            of_thread = before is not None and before.guards and before.stop == each.start
            found += max(0, each.size - _STACK) if of_thread else each.size
        before = each
    return found


def _maps() -> Iterator[_Map]:
    smaps = Path("/proc/self/smaps")
    for found in _ENTRY.finditer(smaps.read_text() if smaps.exists() else ""):
        start, stop = (int(found[key], 16) for key in ("start", "stop"))
        yield _Map(start, stop, found["rights"], found["name"], 1024 * int(found["used"]))


#: glibc reserves the memory of a thread's heap from a multiple of this on.
_ARENA = 1 << 26
#: At most so many bytes are the guard below a stack.
_GUARD = 1 << 16
#: Bytes of a thread's stack.
_STACK = max(1 << 23, resource.getrlimit(resource.RLIMIT_STACK)[0])
_ENTRY = re.compile(
    r"^(?P<start>[0-9a-f]+)-(?P<stop>[0-9a-f]+) (?P<rights>\S{4}) \S+ \S+ \d+ *(?P<name>.*)\n(?:\w+:.*\n)*?"
    r"Rss:\s*(?P<used>\d+) kB$",
    re.MULTILINE,
)


def beside_tensors() -> int | None:
    """Bytes in use on the heap, in shared memory and in maps beyond those of all tensors that Python can reach, once
    they no longer change."""
    before, now = -1, _beside()
    while now is not None and now != before:
        time.sleep(_SETTLING)
        before, now = now, _beside()
    return now


def _beside() -> int | None:
    tensors, account = resident(live_tensors()), _malloc()
    if account is None:
        return None
    maps = list(_maps())
    # malloc's large blocks are private maps, too
    return int(account.uordblks) + max(int(account.hblkhd), _private(maps)) + _shared(maps) - tensors
