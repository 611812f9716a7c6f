"""Python programs in processes of their own that need not import torch: they are forked from a process that has.

To import torch and its compiler takes a core four seconds. What a test starts here differs from ``python ARGUMENTS`` in
that alone; tests that are about the start itself use :mod:`subprocess`.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import TracebackType
from typing import Self

from zerobench.ranks.pool import preloaded

#: Seconds in which a program ends on a machine that is busy with much else; alone it takes a few.
LIMIT = 240.0


class Program(AbstractContextManager["Program"]):
    """``python ARGUMENTS``, which are ``-m MODULE ...`` or ``-c PROGRAM ...``, as a :class:`subprocess.Popen`."""

    def __init__(self, *arguments: str, cwd: Path, env: Mapping[str, str]) -> None:
        self.arguments = arguments
        self._folder = tempfile.TemporaryDirectory(prefix="forked-")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(preloaded())
        self._process = context.Process(target=_become, args=(arguments, cwd, dict(env), self._outputs))
        self._process.start()

    @property
    def _outputs(self) -> list[Path]:
        return [Path(self._folder.name, name) for name in ("stdout", "stderr")]

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for its end; what it wrote to both streams.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        self._process.join(timeout)
        said, complained = (path.read_text(encoding="utf-8") if path.exists() else "" for path in self._outputs)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.arguments, timeout, said, complained)
        return said, complained

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.join()
        self._folder.cleanup()


def run(*arguments: str, cwd: Path, env: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    """``python ARGUMENTS``: how it ended and what it printed, as :func:`subprocess.run` says it.

    Raises:
        subprocess.TimeoutExpired: it does not end within ``timeout`` seconds; it is killed.
    """
    with Program(*arguments, cwd=cwd, env=env) as program:
        try:
            said, complained = program.communicate(timeout)
        finally:
            program.kill()
    return subprocess.CompletedProcess(arguments, program.returncode or 0, said, complained)


def _become(arguments: Sequence[str], cwd: Path, env: Mapping[str, str], outputs: Sequence[Path]) -> None:
    """Be the program, in this process."""
    for descriptor, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    sys.stdout, sys.stderr = (open(each, "w", buffering=1, closefd=False) for each in (1, 2))  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # TMPDIR may be another
    _keep_the_fork_server()
    kind, what, *rest = arguments
    sys.path[:0] = ["" if kind == "-c" else str(cwd), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [kind, *rest]
    try:
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - the tests' own program
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out


def _keep_the_fork_server() -> None:
    """Let a pool of the program fork its ranks from the server that this process comes from.

    It has the server's address, but Python starts another server in a process that has not started the first.
    """
    forkserver._forkserver.ensure_running = resource_tracker.ensure_running  # type: ignore[method-assign]
