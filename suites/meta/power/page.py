"""The parts of the page on power that are made from records."""

from __future__ import annotations

import re
from collections.abc import Callable

from zerobench.suites.meta.power import historical, released, right
from zerobench.suites.support.checkout import ROOT

PAGE = ROOT / "docs" / "reference" / "power.md"
#: The function that makes each part, by its title.
PARTS: dict[str, Callable[[], str]] = {
    "Historical bugs": historical.part,
    "Right but different engines": right.part,
    "Released engines over many seeds": released.part,
}


def write() -> None:
    """Replace the parts in the page."""
    text = PAGE.read_text(encoding="utf-8")
    for title, part in PARTS.items():
        before, after = _pattern(title).split(text)[::2]
        text = f"{before}## {title}\n{part()}\n{after}"
    written = PAGE.with_suffix(".new")
    written.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    written.replace(PAGE)


def written(title: str) -> str:
    """A part as the page has it, without its title."""
    found = _pattern(title).search(PAGE.read_text(encoding="utf-8"))
    return found[1].rstrip("\n") + "\n" if found else ""


def _pattern(title: str) -> re.Pattern[str]:
    return re.compile(rf"^## {title}\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
