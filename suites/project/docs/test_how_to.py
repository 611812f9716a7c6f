"""The how-to pages: each quotation stands in the file that the page names, and the named files exist."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from zerobench.suites.support.checkout import ROOT

_PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_files_are_there(page: Path) -> None:
    """Every relative link leads to a file."""
    links = re.findall(r"\]\(([^):#]+)\)", page.read_text(encoding="utf-8"))
    assert links
    assert all((page.parent / link).is_file() for link in links), links


def test_the_walk_through_an_optimizer() -> None:
    """The formula and the body of docs/how-to/add-an-optimizer.md are those of lion.py."""
    page = (ROOT / "docs" / "how-to" / "add-an-optimizer.md").read_text(encoding="utf-8")
    source = (ROOT / "engine" / "rules" / "lion.py").read_text(encoding="utf-8")
    formula, body, _ = re.findall(r"```\w*\n(.*?)```", page, re.DOTALL)
    assert textwrap.indent(formula, "    ") in source
    assert textwrap.indent(body, " " * 8) in source
