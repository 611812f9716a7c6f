"""Selection: the tests that ``pytest`` leaves to other days, to ``.ci/run``, and to ``pytest --slow``."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

#: Of the tests marked ``ci`` or ``rotating`` one in so many runs in ``pytest``, others on other days, and all with
#: ``--slow``.
SHARE = 120
#: Folders and files whose tests start whole programs and jobs: a plain ``pytest`` does not collect them.
PROGRAMS = (
    "suites/project/",
    "suites/meta/gate/",
    "suites/meta/automatic/",
    "suites/meta/test_narrow.py",
    "suites/meta/test_under_test.py",
    "suites/compat/",
    "suites/bench/",
    "suites/faults/",
)

#: Folders whose tests marked ``ci`` take turns with ``--alternate``.
JUDGES = ("suites/equivalence/", "suites/accounting/")

_DAY = 24 * 60 * 60.0


def left_out(items: list[pytest.Item], turn: int) -> list[pytest.Item]:
    """The tests marked ``slow``, and those marked ``ci`` or ``rotating`` whose turn it is not."""
    rotating = [item for item in items if rotates(item)]
    waiting = {item for place, item in enumerate(rotating) if place % SHARE != turn % SHARE}
    return [item for item in items if item in waiting or _has(item, "slow")]


def of_another_day(items: list[pytest.Item], turn: int) -> list[pytest.Item]:
    """With ``--alternate``: every second of the tests marked ``ci`` that judge an engine, on the next day the others;
    of a property with a test for each stage two stages."""
    judging = [item for item in items if _has(item, "ci") and any(each in item.path.as_posix() for each in JUDGES)]
    return [item for place, item in enumerate(judging) if place % 2 != turn % 2]


def starts_programs(path: Path) -> bool:
    """Whether a folder or file is in one of :data:`PROGRAMS`."""
    return any(folder in f"{path.as_posix()}/" for folder in PROGRAMS)


def is_left_to_ci(item: pytest.Item) -> bool:
    """Whether the test is in one of :data:`PROGRAMS` and has no mark that leaves it out more often."""
    return starts_programs(item.path) and not _has(item, "slow", "rotating")


def rotates(item: pytest.Item) -> bool:
    """Whether the test is one of those that take turns in a plain ``pytest``."""
    return _has(item, "ci", "rotating")


def _has(item: pytest.Item, *marks: str) -> bool:
    return any(item.get_closest_marker(mark) is not None for mark in marks)


def today() -> int:
    """The number of the day, which moves the share on."""
    return int(time.time() // _DAY)


def is_asked_for(config: pytest.Config) -> bool:
    """Whether the command selects tests itself: with ``--slow``, ``-k``, ``-m``, or the name of a file or test."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    return bool(named or config.getoption("slow") or config.getoption("keyword") or config.getoption("markexpr"))
