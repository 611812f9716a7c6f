"""The messages of the command line on standard error."""

from __future__ import annotations

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
