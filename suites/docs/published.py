"""Published results, as the tests of the pages read them."""

from __future__ import annotations

import json
from pathlib import Path

from zerobench.results import Json

ROOT = Path(__file__).parents[2]


def published(report: str) -> Json:
    """The results of a report under ``reports``."""
    value: Json = json.loads((ROOT / "reports" / report / "results.json").read_text(encoding="utf-8"))
    return value
