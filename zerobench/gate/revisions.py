"""Revisions: a commit's own code, in a git worktree and processes of its own, measured by its own ``zerobench run``."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zerobench.errors import Unmeasured, UsageError
from zerobench.gate import grid
from zerobench.report.load import merge, upgrade

Json = dict[str, Any]


def repository(inside: Path) -> Path:
    """The root of the git repository that ``inside`` lies in.

    Raises:
        UsageError: there is none.
    """
    try:
        return Path(_git(inside, "rev-parse", "--show-toplevel"))
    except subprocess.CalledProcessError:
        raise UsageError(f"{str(inside)!r} lies in no git repository, which revisions are of") from None


def commit(root: Path, revision: str) -> str:
    """The commit that a revision names.

    Raises:
        UsageError: none; a shallow clone may lack it.
    """
    try:
        return _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except subprocess.CalledProcessError:
        hint = "git fetch --unshallow" if _git(root, "rev-parse", "--is-shallow-repository") == "true" else "git fetch"
        raise UsageError(f"unknown revision {revision!r}: not in this repository (perhaps `{hint}` first)") from None


def results(inside: Path, revision: str) -> Json:
    """What the code of a revision comes to on the gate's grid, as one value.

    Raises:
        UsageError: no such revision; Unmeasured: its code measures nothing.
    """
    with worktree(repository(inside), revision) as tree:
        values = [measure(tree, arguments) for arguments in grid.accounted(grid.SUBJECT)]
    return merge({f"{revision}, run {index}": upgrade(value) for index, value in enumerate(values, 1)})


@contextmanager
def worktree(root: Path, revision: str) -> Iterator[Path]:
    """A revision checked out in a temporary directory, which is removed in the end."""
    of = commit(root, revision)
    with tempfile.TemporaryDirectory(prefix="zerobench-") as directory:
        path = Path(directory, "tree")
        _git(root, "worktree", "add", "--detach", "--quiet", str(path), of)
        try:
            yield path
        finally:
            _git(root, "worktree", "remove", "--force", str(path))


def measure(tree: Path, arguments: grid.Arguments) -> Json:
    """The results of ``zerobench run`` in a fresh process, with the modules that lie in ``tree`` before all others.

    A subject that is wrong or failed is in the results; that the run ended so is no error here.

    Raises:
        Unmeasured: no results, or of other code than that of ``tree``.
    """
    with tempfile.TemporaryDirectory(prefix="zerobench-") as directory:
        path = os.pathsep.join(filter(None, [str(tree), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, "-m", "zerobench", "run", *arguments, "--out", directory],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        written = Path(directory, "results.json")
        if not written.exists():
            said = (done.stderr or done.stdout).strip()
            run = shlex.join(["zerobench", "run", *arguments])
            raise Unmeasured(f"{run} measured nothing (exit code {done.returncode}): {said}")
        results: Json = json.loads(written.read_text(encoding="utf-8"))
    _demand_own_code(tree, results)
    return results


def _demand_own_code(tree: Path, results: Json) -> None:
    """Where the tree has zerobench itself, results must be of that, not of an installed one."""
    if (tree / ".git").exists() and (tree / "zerobench" / "__main__.py").exists():
        of = (results["environment"]["git"] or {}).get("commit")
        if of != _git(tree, "rev-parse", "HEAD"):
            raise Unmeasured(f"the run in a tree of its own measured the code of commit {of}, not the tree's")


def _git(directory: Path, *arguments: str) -> str:
    command = ["git", "-C", str(directory), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
