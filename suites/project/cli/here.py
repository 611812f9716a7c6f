"""``zerobench`` in this process, which has loaded torch already."""

from __future__ import annotations

import io
import subprocess
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

from zerobench.cli import commands


def run_zerobench(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """How it ended and what it printed, as of a process of its own."""
    said, complained = io.StringIO(), io.StringIO()
    with chdir(cwd or Path.cwd()), redirect_stdout(said), redirect_stderr(complained):
        code = commands.main(arguments)
    return subprocess.CompletedProcess(arguments, code, said.getvalue(), complained.getvalue())
