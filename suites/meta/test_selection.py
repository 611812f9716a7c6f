"""A plain ``pytest`` leaves out the slow tests, and each rotating test runs on one day of each turn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.selection import (
    JUDGES,
    PROGRAMS,
    SHARE,
    is_left_to_ci,
    left_out,
    of_another_day,
    starts_programs,
)


@dataclass(frozen=True)
class _Item:
    name: int
    marker: str
    path: Path = Path("suites/api/test_some.py")

    def get_closest_marker(self, name: str) -> object:
        return self if name == self.marker else None


_MARKS = ["", "slow", *["rotating"] * 19, *["ci"] * 18]
_ITEMS = cast(Any, [_Item(number, marker) for number, marker in enumerate(_MARKS)])


def test_each_rotating_test_has_its_day() -> None:
    """The tests that run in as many days are all but the slow one; the unmarked one runs each day."""
    ran = [item.name for day in range(100, 100 + SHARE) for item in _ITEMS if item not in left_out(_ITEMS, day)]
    assert sorted(ran) == [*[0] * SHARE, *range(2, len(_ITEMS))]


def test_judges_alternate() -> None:
    """On two days in a row each test marked ``ci`` that judges an engine waits once, and no other test waits."""
    judges = [_Item(number, "ci", Path(f"{folder}test_some.py")) for number, folder in enumerate(JUDGES * 4)]
    others = [_Item(100, "ci"), *(_Item(101 + number, "rotating", one.path) for number, one in enumerate(judges))]
    waiting = [of_another_day(cast(Any, [*others, *judges]), day) for day in (7, 8)]
    assert [len(each) for each in waiting] == [4, 4]
    assert {each.name for one in waiting for each in cast(Any, one)} == {each.name for each in judges}
    assert all((ROOT / folder).is_dir() for folder in JUDGES)


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_are_left_to_ci(program: str) -> None:
    """A test of these folders and files is CI's, unless it is slow or rotates."""
    assert (ROOT / program).exists()
    assert starts_programs(ROOT / program)
    test = ROOT / program if program.endswith(".py") else ROOT / program / "test_some.py"
    marks = ["", "slow", "rotating"]
    assert [is_left_to_ci(cast(Any, _Item(0, mark, test))) for mark in marks] == [True, False, False]
    assert not is_left_to_ci(cast(Any, _Item(0, "")))
