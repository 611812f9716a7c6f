"""Options and fixtures of all suites, and the Hypothesis profiles, as a pytest plugin."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from zerobench.suites.support import sharing
from zerobench.suites.support.alone import admitted

if TYPE_CHECKING:  # the process that hands out tests to others starts them a second earlier without torch
    from zerobench.ranks import Pool
    from zerobench.suites.support.trials import Trials

# A Scenario takes as long as its ranks take, so no deadline. The profiles differ in the number of examples only; all
# but `thorough` draw the same ones each time, so that a red run is red again.
_COMMON: dict[str, Any] = {
    "deadline": None,
    "print_blob": False,
    "phases": [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # explain would trace every line
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
}
settings.register_profile("quick", max_examples=8, derandomize=True, database=None, **_COMMON)
settings.register_profile("default", max_examples=40, derandomize=True, database=None, **_COMMON)
settings.register_profile("thorough", max_examples=800, **_COMMON)
settings.load_profile("default")

_WORLD = 4
_trials: list[Trials] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--subject",
        default="reference",
        help="engine under test: reference, torch-ddp, torch-zero1, torch-fsdp2, deepspeed or package.module:Class",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: meters the whole machine, so that no other test may run meanwhile")
    if not _hands_out(config):
        import torch

        from zerobench.ranks import preload

        torch.set_num_threads(1)  # the oracles run here, and bits depend on the ranks' number of threads
        preload("zerobench.bench.rank_tasks", "zerobench.oracles.questions")  # what the ranks of nearly every test run


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Four ranks for the whole session; smaller worlds are their first ranks."""
    from zerobench.ranks import Pool

    with Pool(_WORLD) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def trials(pool: Pool, request: pytest.FixtureRequest) -> Iterator[Trials]:
    """The engine under test, ready to run Scenarios."""
    from zerobench.suites.support.trials import Trials

    made = Trials(pool, request.config.getoption("--subject"))
    _trials.append(made)
    yield made
    made.close()


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_STARTED] = time.monotonic()
    subject = session.config.getoption("--subject")
    if subject != "reference":
        _demand_subject(subject)


def _demand_subject(name: str) -> None:
    """End the session with one line if there is no such engine."""
    from zerobench import subjects
    from zerobench.errors import UsageError

    try:
        subjects.load(name)
    except UsageError as error:
        pytest.exit(f"--subject: {error}", returncode=2)


def _hands_out(config: pytest.Config) -> bool:
    """Whether this process runs no test itself: it has others for that (``pytest -n``)."""
    return bool(getattr(config.option, "tx", None)) and not hasattr(config, "workerinput")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """The cores that are ours; two at least, for a test may wait, and eight at most, for each has four ranks."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(max(2, cores), 8)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files are handed out whole, but for those whose tests share nothing."""
    return sharing.scheduler(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole files first, single tests last, so that all processes end at about the same time."""
    items.sort(key=lambda item: sharing.is_single(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Where several processes run tests (``pytest -n``), one marked ``alone`` waits until no other runs."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    with admitted(Path(item.config.workerinput[_FOLDER]), alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A process of ``pytest -n`` is about to start: tell it where the locks lie."""
    if _LOCKS not in node.config.stash:
        node.config.stash[_LOCKS] = tempfile.TemporaryDirectory()
        node.config.add_cleanup(node.config.stash[_LOCKS].cleanup)
    node.workerinput[_FOLDER] = node.config.stash[_LOCKS].name


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that prints the summary, where that is another one, what ran here."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_RAN] = sum(made.ran for made in _trials)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of ``pytest -n`` has ended."""
    node.config.stash[_ELSEWHERE] = node.config.stash.get(_ELSEWHERE, 0) + getattr(node, "workeroutput", {}).get(
        _RAN, 0
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many Scenarios ran, for a suite that draws none passes everything."""
    scenarios = sum(made.ran for made in _trials) + config.stash.get(_ELSEWHERE, 0)
    if scenarios:
        seconds = time.monotonic() - config.stash[_STARTED]
        rate = f"{scenarios / seconds:.1f} Scenarios per second"
        terminalreporter.write_line(f"{scenarios} Scenarios on {config.getoption('--subject')}, {rate}")


_RAN, _FOLDER = "zerobench_scenarios", "zerobench_locks"
_LOCKS = pytest.StashKey[tempfile.TemporaryDirectory[str]]()
_STARTED = pytest.StashKey[float]()
_ELSEWHERE = pytest.StashKey[int]()
