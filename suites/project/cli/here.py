"""``zerobench`` in this process, which has loaded torch already."""

from __future__ import annotations

import io
import subprocess
from contextlib import redirect_stderr, redirect_stdout

from zerobench.cli import commands


def run_zerobench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """How it ended and what it printed, as of a process of its own."""
    said, complained = io.StringIO(), io.StringIO()
    with redirect_stdout(said), redirect_stderr(complained):
        code = commands.main(arguments)
    return subprocess.CompletedProcess(arguments, code, said.getvalue(), complained.getvalue())
