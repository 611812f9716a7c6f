"""A plain ``pytest`` leaves out the slow tests, and each rotating test runs on one day of each turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from zerobench.suites.support.selection import SHARE, left_out


@dataclass(frozen=True)
class _Item:
    name: int
    marker: str

    def get_closest_marker(self, name: str) -> object:
        return self if name == self.marker else None


_ITEMS = cast(Any, [_Item(number, marker) for number, marker in enumerate(["", "slow", *["rotating"] * 19])])


def test_each_rotating_test_has_its_day() -> None:
    """The tests that run in as many days are all but the slow one; the unmarked one runs each day."""
    ran = [item.name for day in range(100, 100 + SHARE) for item in _ITEMS if item not in left_out(_ITEMS, day)]
    assert sorted(ran) == [*[0] * SHARE, *range(2, len(_ITEMS))]
