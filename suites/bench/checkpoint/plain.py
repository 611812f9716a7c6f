"""Plain files: the bound that a checkpoint's bandwidth is compared with."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

#: Bytes of one call.
_CALL = 1 << 20


def write(path: Path, values: memoryview) -> None:
    """Write a new file and wait until it is on the drive."""
    with path.open("xb", buffering=0) as file:
        done = 0
        while done < len(values):
            done += os.write(file.fileno(), values[done : done + _CALL])
        os.fsync(file.fileno())


def read(path: Path, into: memoryview) -> None:
    """Read a whole file."""
    with path.open("rb", buffering=0) as file:
        done = 0
        while done < len(into):
            got = os.preadv(file.fileno(), [into[done : done + _CALL]], done)
            if not got:
                raise EOFError(f"{path} has {done} bytes, expected {len(into)}")
            done += got


def forget(paths: Iterable[Path]) -> None:
    """Let the system drop its copies of files in memory, so that the next read comes from the drive."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
