"""Runs of right engines, and their record."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from zerobench.suites.support.checkout import ROOT

#: The published record.
PUBLISHED = ROOT / "reports" / "power" / "alarms.jsonl"


@dataclass(frozen=True)
class Run:
    """One right engine with one seed: the draws of each property, the Scenarios that ran, and the failure if any."""

    engine: str
    seed: int
    examples: int
    scenarios: int
    failure: str = ""


def recorded(path: Path = PUBLISHED) -> list[Run]:
    """The runs of a record."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [Run(**json.loads(line)) for line in text.splitlines()]


def record(run: Run, path: Path = PUBLISHED) -> None:
    """Add a run to a record, which is written as a whole."""
    lines = [json.dumps(asdict(each)) + "\n" for each in [*recorded(path), run]]
    written = path.with_suffix(".new")
    written.write_text("".join(lines), encoding="utf-8")
    written.replace(path)
