"""Processes that wait are still; those that compute, by themselves or in a child, are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from zerobench.ranks.progress import Progress

pytestmark = pytest.mark.ci

_SLEEPS = "import time; print(flush=True); time.sleep(600)"
_SPINS = "print(flush=True)\nwhile True: pass"
#: As those of gloo: together they take more than one thread may.
_WAKES_UP = """
import threading, time
def wake():
    while True:
        time.sleep(0.01)
        sum(range(2000))
for _ in range(12):
    threading.Thread(target=wake, daemon=True).start()
print(flush=True)
time.sleep(600)
"""
_CHILD_SPINS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_SPINS!r}])"


@pytest.mark.parametrize(
    ("program", "still"), [(_SLEEPS, True), (_WAKES_UP, True), (_SPINS, False), (_CHILD_SPINS, False)]
)
def test_stillness(program: str, still: bool) -> None:
    """It is seen in a few looks, and never of a process that runs or waits for a core."""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout
        process.stdout.readline()
        progress = Progress([process.pid])
        seen = [_look(progress) for _ in range(8)]
        os.killpg(process.pid, signal.SIGKILL)
    assert (seen[-1] > 1) == still
    assert still or max(seen) == 0


def _look(progress: Progress) -> float:
    time.sleep(0.25)
    return progress.still()


def test_a_child_ends_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child may end between the listing of the processes and the look at its threads."""

    def ended(self: Path, pattern: str) -> Iterator[Path]:
        if self.name == "task":
            raise FileNotFoundError(self)
        return glob(self, pattern)

    glob = Path.glob
    monkeypatch.setattr(Path, "glob", ended)
    assert Progress([os.getpid()]).still() == 0
