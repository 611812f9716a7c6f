"""The messages of the command line on standard error, and the end of the reader of its output."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

from zerobench.report import FILES


def complain(what: str, code: int) -> int:
    """Print one line about the error; returns the exit code."""
    print(f"zerobench: {what}", file=sys.stderr)
    return code


def say_written(directory: Path) -> None:
    """Print the path of a report."""
    *names, last = (str(directory / name) for name in FILES)
    print(f"zerobench: wrote {', '.join(names)} and {last}", file=sys.stderr)


def reader_gone() -> bool:
    """Whether nobody reads the output any more, as after ``| head``; then what is left of it goes nowhere."""
    output = sys.stdout.fileno()
    waiting = select.poll()
    waiting.register(output, 0)
    if not waiting.poll(0):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, output)
    os.close(nowhere)
    return True
