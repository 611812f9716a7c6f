"""Revisions: each is measured by its own code, and what is not that is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from zerobench.cli import commands
from zerobench.errors import Unmeasured, UsageError
from zerobench.gate import grid, revisions

_ENGINE = "mine:Mine"


def _git(directory: Path, *arguments: str) -> str:
    command = ["git", "-C", str(directory), "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _repository(directory: Path, folder: str) -> Path:
    """Someone else's, of two commits, whose engine says which one it is of."""
    _git(directory, "init", "--quiet")
    (directory / folder).mkdir(exist_ok=True)
    for says in ("first", "second"):
        (directory / folder / "mine.py").write_text(
            "from zerobench.subjects.reference import Reference\n"
            f"class Mine(Reference):\n    unsupported = classmethod(lambda cls, scenario: {says!r})\n"
        )
        _git(directory, "add", ".")
        _git(directory, "commit", "--quiet", "-m", says)
    return directory


def test_each_revision_runs_its_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit's engine is what runs, also where the head's is installed for editing."""
    _repository(tmp_path, ".")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    arguments = ("--subjects", _ENGINE, "--model", "nano", "--steps", "1", "--stages", "0")
    with revisions.worktree(tmp_path, "HEAD~1") as tree:
        assert revisions.measure(tree, arguments)["cases"][0]["reason"] == "first"
    assert not tree.exists()
    assert len(_git(tmp_path, "worktree", "list").splitlines()) == 1


def test_no_results(tmp_path: Path) -> None:
    """What the run said is told."""
    with pytest.raises(Unmeasured, match="unknown subject"):
        revisions.measure(tmp_path, ("--subjects", "mien"))


@pytest.mark.parametrize("folder", [".", "src"])
def test_each_revision_finds_its_own_code(tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its root and in its src, before what is installed."""
    _repository(tmp_path, folder)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / folder))
    with revisions.worktree(tmp_path, "HEAD~1") as tree:
        revisions.demand_own(tree, _ENGINE)


def test_the_head_is_not_taken_for_another_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a process in a tree finds the engine elsewhere, nothing is measured; a folder of the tree can be named."""
    _repository(tmp_path, "lib")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    with revisions.worktree(tmp_path, "HEAD~1") as tree:
        with pytest.raises(Unmeasured, match=rf"mine is {tmp_path}/lib/mine\.py"):
            revisions.demand_own(tree, _ENGINE)
        monkeypatch.setenv("PYTHONPATH", "lib")
        revisions.demand_own(tree, _ENGINE)
        with pytest.raises(Unmeasured, match="No module named 'other'"):
            revisions.demand_own(tree, "other.place:Engine")


def test_compare_measures_what_the_repository_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the reference engine that is installed, twice: that is an error; --subject names the repository's own."""
    monkeypatch.chdir(_repository(tmp_path, "."))
    measured: list[grid.Arguments] = []

    def measure(tree: Path, arguments: grid.Arguments) -> None:
        measured.append(arguments)
        raise Unmeasured("that is enough")

    monkeypatch.setattr(revisions, "measure", measure)
    assert commands.main(["compare", "HEAD~1", "HEAD"]) == 2
    assert "reference is not the code of a revision" in capsys.readouterr().err
    assert not measured
    assert commands.main(["compare", "HEAD~1", "HEAD", "--subject", _ENGINE]) == 2
    assert "that is enough" in capsys.readouterr().err
    assert measured == [next(grid.accounted(_ENGINE))]


@pytest.mark.parametrize("revision", ["nowhere", "--help"])
def test_an_unknown_revision(tmp_path: Path, revision: str) -> None:
    """Is said to be one."""
    _git(tmp_path, "init", "--quiet")
    with pytest.raises(UsageError, match="unknown revision"):
        revisions.commit(tmp_path, revision)


def test_no_repository(tmp_path: Path) -> None:
    """Revisions are of one; what git says is told, too."""
    with pytest.raises(UsageError, match=r"in no git repository.*: fatal: not a git"):
        revisions.repository(tmp_path)


def test_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, and not that of a regression."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commands.main(["compare", "HEAD~1", "HEAD"]) == 3
    assert "no git on PATH" in capsys.readouterr().err


def test_a_worktree_that_cannot_be(tmp_path: Path) -> None:
    """What git says is told."""
    _repository(tmp_path, ".")
    (tmp_path / ".git" / "worktrees").touch()
    with pytest.raises(Unmeasured, match=r"worktree add .*: .*worktrees"), revisions.worktree(tmp_path, "HEAD"):
        pass
