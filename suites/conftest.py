"""Options and fixtures of all suites, and the Hypothesis profiles, as a pytest plugin."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from zerobench.suites.support import covering, selection, sharing
from zerobench.suites.support.alone import admitted

if TYPE_CHECKING:  # if the process that hands out tests does not import torch, it starts them a second earlier
    from zerobench.ranks import Pool
    from zerobench.suites.support.trials import Trials

# A Scenario takes as long as its ranks take, so no deadline. The profiles differ in the number of examples only; all
# but `thorough` draw the same ones each time, so that a red run is red again.
_COMMON: dict[str, Any] = {
    "deadline": None,
    "print_blob": False,
    "report_multiple_bugs": False,  # the first failure has a place and a command; a group of them has neither
    "phases": [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # explain would trace every line
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
}
settings.register_profile("quick", max_examples=8, derandomize=True, database=None, **_COMMON)
settings.register_profile("default", max_examples=40, derandomize=True, database=None, **_COMMON)
settings.register_profile("thorough", max_examples=800, **_COMMON)
settings.load_profile("default")

_trials: list[Trials] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--subject",
        default="reference",
        help="engine under test: a name of zerobench/subjects/__init__.py, package.module:Class or file.py:Class",
    )
    parser.addoption("--device", choices=("cpu", "cuda"), default="cpu", help="on which engines train; default: cpu")
    parser.addoption("--seed", type=int, help="of the drawn Scenarios; 0, or in the thorough profile the time")
    parser.addoption(
        "--alternate", action="store_true", help="judge the engine with every second test marked ci, by the day"
    )
    parser.addoption("--slow", action="store_true", help="run the tests marked slow as well, and every mutant")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: meters the whole machine, so that no other test may run meanwhile")
    config.addinivalue_line(
        "markers", "slow: a plain pytest leaves it out, because it repeats a program in another form"
    )
    config.addinivalue_line("markers", "rotating: a plain pytest runs one of 120, others on other days")
    config.addinivalue_line("markers", "ci: .ci/run runs them all; a plain pytest as `rotating`")
    covering.SEED = _seed(config)
    covering.DEVICE = config.getoption("--device")
    if not _hands_out(config):
        from zerobench.suites.support.trials import prepare

        prepare(covering.DEVICE)


def _seed(config: pytest.Config) -> int:
    """The seed of all draws, the same in every process of a run."""
    given: int | None = getattr(config, "workerinput", {}).get(_SEED, config.getoption("seed"))
    if given is not None:
        return given
    return int(time.time()) if config.getoption("--hypothesis-profile") == "thorough" else 0


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Four ranks for the whole session; smaller worlds are their first ranks."""
    from zerobench.suites.support.trials import four_ranks

    with four_ranks(covering.DEVICE) as ranks:
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
    given = getattr(session.config, "workerinput", {})
    session.config.stash[_TURN] = given.get(_DAY, selection.today())  # all processes of a run have the same day
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
    """Whether this process runs no test itself, because others do (``pytest -n``)."""
    return bool(getattr(config.option, "tx", None)) and not hasattr(config, "workerinput")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """This process's cores; two at least, because a test may wait, and eight at most, because each has four ranks."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(max(2, cores), 8)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out files whole; if the tests of a file share nothing, hand them out one by one."""
    return sharing.scheduler(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A plain pytest does not even import the tests of programs."""
    return True if selection.starts_programs(collection_path) and not selection.is_asked_for(config) else None


def pytest_itemcollected(item: pytest.Item) -> None:
    if selection.is_left_to_ci(item):
        item.add_marker("ci")


def pytest_collection_finish(session: pytest.Session) -> None:
    """The tests live as long as the process: its garbage collector need not visit them, nor start at each autograd
    graph of an oracle."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of ``--slow``, and sort: whole files first, then single tests whose length is not known, and
    short ones last, so that all processes end at about the same time."""
    waiting = [] if selection.is_asked_for(config) else selection.left_out(items, config.stash[_TURN])
    if config.getoption("alternate"):
        waiting += selection.of_another_day(items, config.stash[_TURN])
    left_out = set(waiting)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: (sharing.is_single(item.nodeid), not selection.rotates(item)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """If several processes run tests (``pytest -n``), a test marked ``alone`` waits until no other runs."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    with admitted(Path(item.config.workerinput[_FOLDER]), alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A process of ``pytest -n`` is about to start: tell it the folder of the locks."""
    if _LOCKS not in node.config.stash:
        node.config.stash[_LOCKS] = tempfile.TemporaryDirectory()
        node.config.add_cleanup(node.config.stash[_LOCKS].cleanup)
    node.workerinput[_FOLDER] = node.config.stash[_LOCKS].name
    node.workerinput[_SEED] = covering.SEED
    node.workerinput[_DAY] = node.config.stash[_TURN]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Keep the numbers of a drawn test's draws, and the rules of the accounting, with the test's report, which another
    process may print."""
    from zerobench.suites.support import judged
    from zerobench.suites.support.drawing import course

    course().restart()
    judged.restart()
    try:
        return (yield)
    finally:
        if course().drawn:
            item.user_properties.append((_DRAWS, str(course())))
        if item.path.parent.name == "accounting":
            item.user_properties.append((judged.PROPERTY, judged.current.exported()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """If another process prints the summary, send it the number of Scenarios that ran here."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_RAN] = sum(made.ran for made in _trials)
        session.config.workeroutput[_COVERED] = covering.exported()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of ``pytest -n`` has ended."""
    output = getattr(node, "workeroutput", {})
    node.config.stash[_ELSEWHERE] = node.config.stash.get(_ELSEWHERE, 0) + output.get(_RAN, 0)
    covering.merge(output.get(_COVERED, {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the number of Scenarios and their coverage, because a suite that draws none passes everything."""
    scenarios = sum(made.ran for made in _trials) + config.stash.get(_ELSEWHERE, 0)
    if scenarios:
        seconds = time.monotonic() - config.stash[_STARTED]
        rate = f"{scenarios / seconds:.1f} Scenarios per second"
        terminalreporter.write_line(f"{scenarios} Scenarios on {config.getoption('--subject')}, {rate}")
        if covering.Covering.fields:
            terminalreporter.write_line(covering.summary())
    if config.getoption("--subject") != "reference":
        for line in (*_draws(terminalreporter), *_judged(terminalreporter)):
            terminalreporter.write_line(line)


def _judged(terminalreporter: pytest.TerminalReporter) -> Iterator[str]:
    from zerobench.suites.support import judged  # here: it loads torch

    return judged.summary(terminalreporter)


def _draws(terminalreporter: pytest.TerminalReporter) -> Iterator[str]:
    """Each drawn test with the numbers of its draws, of those that the engine offers, and of those that ran."""
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.getreports(outcome):
            said = dict(report.user_properties).get(_DRAWS)
            if said:
                yield f"{outcome} {report.nodeid.rpartition('::')[2]}: {said}"


_DRAWS = "zerobench_draws"
_RAN, _COVERED = "zerobench_scenarios", "zerobench_covered"
_FOLDER, _DAY, _SEED = "zerobench_locks", "zerobench_day", "zerobench_seed"
_TURN = pytest.StashKey[int]()
_LOCKS = pytest.StashKey[tempfile.TemporaryDirectory[str]]()
_STARTED = pytest.StashKey[float]()
_ELSEWHERE = pytest.StashKey[int]()
