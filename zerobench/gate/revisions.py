"""Revisions: a commit's code, measured by its own ``zerobench run`` in its own git worktree and processes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from zerobench.errors import Unmeasured, UsageError
from zerobench.gate import grid
from zerobench.results import Json
from zerobench.results.merging import merge
from zerobench.results.versions import upgrade
from zerobench.subjects import REGISTRY

_Done = subprocess.CompletedProcess[str]

#: Prints the file from which a module would be imported.
_WHERE = "import importlib.util as u, sys; found = u.find_spec(sys.argv[1]); print(found and found.origin or str())"


def repository(inside: Path) -> Path:
    """The root of the git repository that ``inside`` lies in.

    Raises:
        UsageError: if there is none, or no git.
    """
    try:
        return Path(_git(inside, "rev-parse", "--show-toplevel"))
    except Unmeasured as error:
        raise UsageError(f"{str(inside)!r} lies in no git repository, which revisions are of: {error}") from None


def commit(root: Path, revision: str) -> str:
    """The commit that a revision names.

    Raises:
        UsageError: if there is none; a shallow clone may lack it.
    """
    try:
        return _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except Unmeasured:
        hint = "git fetch --unshallow" if _git(root, "rev-parse", "--is-shallow-repository") == "true" else "git fetch"
        raise UsageError(f"unknown revision {revision!r}: not in this repository (perhaps `{hint}` first)") from None


def measure_revision(inside: Path, revision: str, subject: str) -> Json:
    """The results of a subject on the gate's grid in the code of a revision, as one value.

    Raises:
        UsageError: if there is no such revision; Unmeasured: if its code measures nothing, or has no such subject.
    """
    with worktree(repository(inside), revision) as tree:
        demand_own(tree, subject)
        values = [measure(tree, arguments) for arguments in grid.accounted(subject)]
    return merge({f"{revision}, run {index}": value for index, value in enumerate(values, 1)})


@contextmanager
def worktree(root: Path, revision: str) -> Iterator[Path]:
    """A revision checked out in a temporary directory, which is removed at the end."""
    of = commit(root, revision)
    with tempfile.TemporaryDirectory(prefix="zerobench-") as directory:
        path = Path(directory, "tree")
        _git(root, "worktree", "add", "--detach", "--quiet", str(path), of)
        try:
            yield path
        finally:
            _git(root, "worktree", "remove", "--force", str(path))


def demand_own(tree: Path, subject: str) -> None:
    """Check that a process in ``tree`` imports the subject from there, not an installed one.

    If a package is installed as editable, every tree imports the head.

    Raises:
        Unmeasured: if it does not; the message has the path of the import.
    """
    module = REGISTRY.get(subject, subject).partition(":")[0]
    done = _python(tree, "-c", _WHERE, module)
    found = (done.stdout.splitlines() or [""])[-1]
    if not found or not (tree / found).resolve().is_relative_to(tree.resolve()):
        seen = found or (done.stderr.splitlines() or ["not found"])[-1]
        raise Unmeasured(
            f"{subject} is not the code of a revision: in the root of one, {module} is {seen}; name with --subject an "
            "engine of this repository, whose package is in the root, in src or in a folder of PYTHONPATH"
        )


def measure(tree: Path, arguments: grid.Arguments) -> Json:
    """The results of ``zerobench run`` in a fresh process, with the modules in ``tree`` before all others.

    If a subject is wrong or failed, the results say so; it is no error here. If an older revision writes an older
    schema, it is upgraded.

    Raises:
        Unmeasured: if there are no results, or if they are of other code than that of ``tree``.
    """
    with tempfile.TemporaryDirectory(prefix="zerobench-") as directory:
        done = _python(tree, "-m", "zerobench", "run", *arguments, "--out", directory)
        written = Path(directory, "results.json")
        if not written.exists():
            said = (done.stderr or done.stdout).strip()
            run = shlex.join(["zerobench", "run", *arguments])
            raise Unmeasured(f"{run} measured nothing (exit code {done.returncode}): {said}")
        results = upgrade(json.loads(written.read_text(encoding="utf-8")))
    _demand_own_code(tree, results)
    return results


def _demand_own_code(tree: Path, results: Json) -> None:
    """If the tree has zerobench itself, results must come from it, not from an installed one."""
    if (tree / ".git").exists() and (tree / "zerobench" / "__main__.py").exists():
        of = (results["environment"]["git"] or {}).get("commit")
        if of != _git(tree, "rev-parse", "HEAD"):
            raise Unmeasured(f"the run in a tree of its own measured the code of commit {of}, not the tree's")


def _python(tree: Path, *arguments: str) -> _Done:
    """Python in ``tree``, which finds the modules there or in its ``src`` before all others."""
    path = os.pathsep.join(filter(None, [str(tree), str(tree / "src"), os.environ.get("PYTHONPATH")]))
    return _run([sys.executable, *arguments], tree, {**os.environ, "PYTHONPATH": path})


def _run(command: Sequence[str], cwd: Path | None = None, env: Mapping[str, str] | None = None) -> _Done:
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, errors="backslashreplace", check=False
    )


def _git(directory: Path, *arguments: str) -> str:
    """The output of git.

    Raises:
        UsageError: if there is no git; Unmeasured: if it fails, with its message.
    """
    command = ["git", "-C", str(directory), *arguments]
    try:
        done = _run(command)
    except FileNotFoundError:
        raise UsageError("there is no git on PATH, which revisions are found by") from None
    if done.returncode:
        raise Unmeasured(f"{shlex.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()
