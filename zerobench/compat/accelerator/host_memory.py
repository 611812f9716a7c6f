"""The memory of this process in the host, which DeepSpeed gives as the memory of a CPU."""

from __future__ import annotations

import os
from pathlib import Path


class HostMemory:
    """Bytes of this process, and the most that a call has seen."""

    def __init__(self) -> None:
        self._most = 0

    def resident(self) -> int:
        """Bytes that are in memory now."""
        now = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
        self._most = max(self._most, now)
        return now

    def most_resident(self) -> int:
        """The most that a call has seen since :meth:`reset`."""
        self.resident()
        return self._most

    def reset(self) -> None:
        """Begin to look for the most again."""
        self._most = 0
        self.resident()
