"""Published results, as the tests of the pages read them."""

from __future__ import annotations

from zerobench.results import Json
from zerobench.results.files import read
from zerobench.suites.support.checkout import ROOT


def read_published(report: str) -> Json:
    """The results of a report under ``reports``."""
    return read(ROOT / "reports" / report / "results.json")
