"""What the command line tells on standard error."""

from __future__ import annotations

import sys
from pathlib import Path

from zerobench.report import FILES


def complain(what: str, code: int) -> int:
    """Say in one line what is wrong; returns the exit code."""
    print(f"zerobench: {what}", file=sys.stderr)
    return code


def say_written(directory: Path) -> None:
    """Say where a report is."""
    *names, last = (str(directory / name) for name in FILES)
    print(f"zerobench: wrote {', '.join(names)} and {last}", file=sys.stderr)
