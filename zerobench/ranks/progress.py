"""Progress of processes, as Linux shows it: a hang is seen long before a time limit that suits a busy machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

#: CPU seconds that a thread of still processes may take, and their further share of the time in which they are still:
#: threads of libraries wake up now and then. Those of gloo, a hundred times a second, take up to 0.5 % of a core.
_NEXT_TO_NOTHING, _SHARE = 0.05, 0.02
#: Seconds that one look stands for at most: this process may have been stopped together with the others.
_LOOK = 1.0


class Progress:
    """Watches processes and their children; :meth:`still` is the number of seconds in which none of them did anything.

    A process does something if one of its threads has taken CPU time, if its main thread runs or waits for a core, or
    if a thread waits for a disk. A thread that only wakes up now and then, as gloo's do, takes next to no time. A
    deadlock is still; a loop that polls without a pause is not. On a system without ``/proc`` nothing is ever still.
    """

    def __init__(self, processes: Sequence[int]) -> None:
        self._processes = processes
        self._looked = time.monotonic()
        self._still = 0.0
        self._taken: dict[str, float] = {}  # CPU seconds of each thread when they last did something

    def still(self) -> float:
        """Look at the processes; the seconds for which every look has found them still."""
        threads, now = list(_threads(self._processes)), time.monotonic()
        self._still += min(now - self._looked, _LOOK)
        self._looked = now
        allowed = _NEXT_TO_NOTHING + _SHARE * self._still
        if not threads or any(busy or taken - self._taken.get(name, 0.0) > allowed for name, busy, taken in threads):
            self._still, self._taken = 0.0, {name: taken for name, _, taken in threads}
        return self._still


def _threads(processes: Sequence[int]) -> Iterator[tuple[str, bool, float]]:
    """Its path in ``/proc``, whether it does something now, and its CPU seconds, for each thread of the processes and
    their children."""
    for process in _with_children(processes):
        for path in _stat_files(process):
            with suppress(OSError):  # it has ended meanwhile
                state, _, *fields = _fields(path)
                busy = state == "D" or (state == "R" and path.parent.name == str(process))
                yield str(path), busy, (int(fields[9]) + int(fields[10])) / os.sysconf("SC_CLK_TCK")


def _stat_files(process: int) -> list[Path]:
    """Those of its threads; none if it has ended meanwhile."""
    with suppress(OSError):
        return list(Path(f"/proc/{process}/task").glob("*/stat"))
    return []


def _with_children(processes: Sequence[int]) -> set[int]:
    """The processes, their children, the children's children and so on."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(_fields(path)[1])
    found, more = set[int](), set(processes)
    while more:
        found |= more
        more = {child for child, parent in parents.items() if parent in found} - found
    return found


def _fields(path: Path) -> list[str]:
    """The fields of a ``stat`` file from the state on; the program's name before it may hold anything."""
    return path.read_text().rpartition(")")[2].split()
