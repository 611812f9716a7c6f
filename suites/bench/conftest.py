"""Options and fixtures of the benchmark suites, and pytest-benchmark's description of the machine and the results.

They take minutes, so that they run only if they are named: ``pytest suites/bench``. Else the smoke test runs.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from zerobench.machine.environment import describe_environment
from zerobench.machine.launch import Launch
from zerobench.ranks import follow
from zerobench.results import Json, schema
from zerobench.suites.bench import replaying
from zerobench.suites.bench.runs import Runs, threads

_HERE = Path(__file__).resolve().parent  # the package links to this folder
_SMOKE = "test_smoke.py"
_RUNS = pytest.StashKey[Runs]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("zerobench benchmarks")
    group.addoption("--quick", action="store_true", help="the small grid: a few minutes on two cores")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Benchmarks run alone: not in several processes of ``pytest -n``."""
    if _measuring(config):
        config.option.numprocesses = 0


def pytest_configure(config: pytest.Config) -> None:
    """If a launcher has started this process as another rank than 0, be a rank and nothing else."""
    launch = Launch.seen() if _measuring(config) else None
    if launch and launch.rank:
        device = config.getoption("--device")
        os._exit(follow(launch, device, threads(device)))  # pytest would take an exit here for its own failure


def _measuring(config: pytest.Config) -> bool:
    """Whether the command line names this folder or something in it but the smoke test."""
    paths = [Path(str(arg).split("::")[0]).resolve() for arg in config.args]
    return any(path.is_relative_to(_HERE) and path.name != _SMOKE for path in paths)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the benchmarks unless they are named; if they are, ignore the smoke test."""
    if collection_path.is_dir():
        return None
    return True if _measuring(config) == (collection_path.name == _SMOKE) else None


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest, progress: Callable[[str], None]) -> Iterator[Runs]:
    """The measurements of this session."""
    made = Runs(request.config.getoption("--device"), progress)
    request.config.stash[_RUNS] = made
    yield made
    made.close()


@pytest.fixture(scope="session")
def progress(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Prints progress, under ``-v``."""
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    verbose = request.config.get_verbosity() > 0
    return lambda what: reporter.write_line(what) if verbose and reporter else None


@pytest.fixture
def carry(request: pytest.FixtureRequest) -> Callable[[Json, list[float]], None]:
    """Gives pytest-benchmark the measured rounds, with the results they belong to."""

    def carry(extra: Json, seconds: list[float]) -> None:
        benchmark = request.getfixturevalue("benchmark")
        benchmark.extra_info["zerobench"] = {"schema": schema.VERSION, **extra}
        replaying.replay(benchmark, seconds)

    return carry


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """The environment in place of names of the machine."""
    for name in ("node", "release", "python_build", "python_compiler"):
        machine_info.pop(name, None)
    runs = config.stash.get(_RUNS, None)
    machine_info["zerobench"] = (runs and runs.environment) or describe_environment()


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_commit_info(config: pytest.Config, commit_info: dict[str, Any]) -> None:
    """Commit and dirty flag; no names of branches and folders."""
    git = describe_environment()["git"]
    commit_info.clear()
    commit_info.update({"id": git["commit"], "dirty": git["dirty"]} if git else {"id": "unversioned", "dirty": True})


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """The whole results under ``zerobench``: also the cases without a time."""
    runs = config.stash.get(_RUNS, None)
    found = runs and runs.document(shlex.join(["pytest", *map(str, config.invocation_params.args)]))
    if found:
        output_json["zerobench"] = found
