"""The workflow parses, and every command of it and of the pages exists: program, options, sessions, files, extras."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from zerobench.bench.plan import plan_cases
from zerobench.cli import options
from zerobench.gate import grid
from zerobench.gate.baseline import Baseline
from zerobench.results.identity import COMPUTE_ONLY
from zerobench.subjects import deepspeed_cpu_adam
from zerobench.suites.bench.checkpoint import __main__ as checkpoint
from zerobench.suites.bench.gpu import __main__ as gpu
from zerobench.suites.meta.automatic import session
from zerobench.suites.project.docs.pages import PAGES, commands
from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import LIMIT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def _workflow(path: Path) -> dict[str, Any]:
    value = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(value, dict)
    return value


def _steps() -> Iterator[dict[str, Any]]:
    for path in WORKFLOWS:
        for job in _workflow(path)["jobs"].values():
            yield from job["steps"]


def _commands() -> Iterator[str]:
    for step in _steps():
        yield from step.get("run", "").splitlines()
    for page in PAGES:
        yield from commands(page)


@pytest.fixture(scope="module")
def sessions() -> set[str]:
    """The names of nox's sessions."""
    command = [sys.executable, "-m", "nox", "-l"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=True).stdout
    return set(re.findall(r"^[*-] (\w+) -> ", listed, re.MULTILINE))


def test_there_are_workflows() -> None:
    """Without one the other tests check nothing."""
    assert WORKFLOWS
    assert len(list(_commands())) > 15


@pytest.mark.parametrize("command", sorted(set(_commands())))
def test_command_exists(command: str, sessions: set[str]) -> None:
    """Sessions, subcommands, options and files exist; an unknown program is an error."""
    program, *arguments = shlex.split(command)
    if program in ("torchrun", "mpirun"):
        program, *arguments = arguments[arguments.index("-m") + 1 :]
    if program == "nox":
        own = arguments[: arguments.index("--")] if "--" in arguments else arguments
        assert own[:2] == ["--no-venv", "-s"]
        assert set(own[2:]) <= sessions
        if own[2:] == ["gate"]:
            options.parser().parse_args(["gate", "--baseline", "x", *arguments[len(own) + 1 :]])
        if own[2:] == ["mutants"]:
            session.parser().parse_args([argument.replace("$WEEK", "1") for argument in arguments[len(own) + 1 :]])
    elif program == "zerobench":
        options.parser().parse_args(arguments)
    elif program == "zerobench.compat":
        assert all((ROOT / path).exists() for path in arguments if path.startswith("docs/"))
    elif arguments[:2] == ["-m", "zerobench.suites.bench.gpu"]:
        gpu.parser().parse_args(arguments[2:])
    elif arguments[:2] == ["-m", "zerobench.suites.bench.checkpoint"]:
        checkpoint.parser().parse_args(arguments[2:])
    elif program == "pytest":
        assert all((ROOT / suite).exists() for suite in _suites(arguments))
    elif command not in (deepspeed_cpu_adam.BUILD, deepspeed_cpu_adam.BUILD_LION):
        assert re.match(
            r"python -m pip install |python (limited|resume)\.py |cat zerobench-(bench|mutants)/report\.md >> "
            r"|python -m zerobench\.compat (-m accelerate\.commands\.launch |--command bash train\.sh$)",
            command,
        )


def _suites(arguments: list[str]) -> list[str]:
    """The path of the suite that a pytest command names, if it names any."""
    if "--pyargs" in arguments:
        return [arguments[arguments.index("--pyargs") + 1].replace(".", "/")]
    return [argument for argument in arguments[:1] if not argument.startswith("-")]


def test_extras_exist() -> None:
    """Every extra that a command installs is in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {extra for command in _commands() for extra in re.findall(r"pip install .*\[(\w+)\]", command)}
    assert named <= project["optional-dependencies"].keys()


def test_actions_are_pinned_and_may_only_read() -> None:
    """Each is pinned to a major version or a commit; the only permission is to read the code."""
    for path in WORKFLOWS:
        workflow = _workflow(path)
        assert workflow["permissions"] == {"contents": "read"}
        assert workflow["concurrency"]
        assert all(job["timeout-minutes"] for job in workflow["jobs"].values())
    for step in _steps():
        assert re.search(r"@(v\d+|[0-9a-f]{40})$", step.get("uses", "@v1"))
        assert "${{" not in step.get("run", ""), "text from outside goes through the environment, not into the shell"


def test_the_baseline_has_the_cases_of_the_grid() -> None:
    """If the grid changes without its baseline, this test fails before any measurement."""
    committed = Baseline.read(ROOT / "reports" / "baselines" / "cpu.json")
    expected = set()
    for arguments in grid.accounted(grid.SUBJECT):
        given = options.parser().parse_args(["run", *arguments])
        base = options.base_scenario(given)
        cases = plan_cases(base, given.subjects, given.stages)
        expected |= {case.id for case in cases if case.subject != COMPUTE_ONLY}
    assert set(committed.cases) == expected


def test_deepspeed_is_asked() -> None:
    """Each file of tests that compares the drop-in with the installed DeepSpeed runs in the job that installs it."""
    [job] = [step.get("run", "") for step in _steps() if "programs/test_peer_curves.py" in step.get("run", "")]
    files = (ROOT / "suites" / "compat").rglob("test_*.py")
    asking = {str(path.relative_to(ROOT)) for path in files if "NEEDS_DEEPSPEED" in path.read_text(encoding="utf-8")}
    assert len(asking) > 5
    assert asking <= set(job.split())
