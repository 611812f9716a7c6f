"""LoopbackMeter: bytes that really crossed this machine's loopback device, from the kernel's own counters."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

_COUNTERS = Path("/proc/net/dev")


class LoopbackMeter:
    """Counts the bytes received on ``lo`` inside the ``with`` block, in ``bytes``; None where there is no counter.

    The bytes are those of every process of the machine, TCP/IP headers and acknowledgements included.
    """

    def __init__(self) -> None:
        self.bytes: int | None = None

    def __enter__(self) -> Self:
        self._start = _received()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = _received()
        self.bytes = None if end is None or self._start is None else end - self._start


def _received() -> int | None:
    """``lo``'s first counter: a line of the file is ``name: received_bytes packets ...``."""
    lines = _COUNTERS.read_text().splitlines() if _COUNTERS.exists() else []
    counters = {name.strip(): rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    return int(counters["lo"][0]) if "lo" in counters else None
