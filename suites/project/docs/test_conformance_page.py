"""The published conformance: its pages and the README's matrix are made from its results."""

from __future__ import annotations

import json
import re

from zerobench.conform import page, verdicts
from zerobench.suites.project.docs.pages import read
from zerobench.suites.support.checkout import ROOT

_FOLDER = "reports/conformance"


def _published() -> verdicts.Json:
    value: verdicts.Json = json.loads((ROOT / _FOLDER / "conformance.json").read_text(encoding="utf-8"))
    return value


def test_pages_show_the_results() -> None:
    """The files of the folder are those that ``zerobench conform`` writes beside these results."""
    value = _published()
    assert verdicts.flaw(value) == ""
    for name, text in (("conformance.md", page.as_markdown(value)), ("conformance.html", page.as_html(value))):
        assert (ROOT / _FOLDER / name).read_text(encoding="utf-8") == text, name


def test_matrix_of_the_readme() -> None:
    """It has the published verdicts of the engines that it names, by area."""
    value = _published()
    header = next(line for line in read("README.md").splitlines() if line.startswith("| area "))
    shown = re.findall(r"\| ([\w-]+) \(", header)
    engines = [each for each in value["engines"] if each["subject"] in shown]
    assert len(shown) >= 5
    assert page.summary({"engines": engines}, links=False) in read("README.md")
