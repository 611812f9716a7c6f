"""Selection: the tests that ``pytest`` leaves to ``pytest --slow``."""

from __future__ import annotations

import time

import pytest

#: Of the mutants, fixed Scenarios and long programs one in so many runs in ``pytest``, others on other days, and all
#: with ``--slow``.
SHARE = 8

_DAY = 24 * 60 * 60.0


def left_out(items: list[pytest.Item], turn: int) -> list[pytest.Item]:
    """The tests marked ``slow``, and those marked ``rotating`` whose turn it is not."""
    rotating = [item for item in items if item.get_closest_marker("rotating")]
    waiting = {item for place, item in enumerate(rotating) if place % SHARE != turn % SHARE}
    return [item for item in items if item in waiting or item.get_closest_marker("slow")]


def today() -> int:
    """The number of the day, which moves the share on."""
    return int(time.time() // _DAY)


def is_asked_for(config: pytest.Config) -> bool:
    """Whether the command selects tests itself: with ``--slow``, ``-k``, ``-m``, or the name of a file or test."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    return bool(named or config.getoption("slow") or config.getoption("keyword") or config.getoption("markexpr"))
