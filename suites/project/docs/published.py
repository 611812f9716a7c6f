"""Published results, as the tests of the pages read them."""

from __future__ import annotations

import json

from zerobench.results.document import Json
from zerobench.suites.support.checkout import ROOT


def published(report: str) -> Json:
    """The results of a report under ``reports``."""
    value: Json = json.loads((ROOT / "reports" / report / "results.json").read_text(encoding="utf-8"))
    return value
