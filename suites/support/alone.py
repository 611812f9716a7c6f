"""Alone: if several processes run the tests, a test that meters the whole machine has it to itself."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def outside() -> dict[str, str]:
    """The environment for a pytest of its own: this one's without the variables of ``pytest -n``, under which
    pytest-benchmark does not measure."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}


@contextmanager
def admitted(folder: Path, *, alone: bool) -> Iterator[None]:
    """Hold a place among the tests that run at once, or all places.

    Two locks on files in ``folder``, which the kernel frees when their process dies. If a test wants all places,
    it keeps the gate shut while the others leave, so that no new test goes in before it.
    """
    with _locked(folder / "gate", fcntl.LOCK_EX) as gate, _locked(folder / "room", _KINDS[alone]):
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


_KINDS = {True: fcntl.LOCK_EX, False: fcntl.LOCK_SH}


@contextmanager
def _locked(path: Path, kind: int) -> Iterator[int]:
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(handle, kind)
        yield handle
    finally:
        os.close(handle)
