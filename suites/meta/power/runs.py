"""Runs of right engines, and their record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zerobench.suites.meta.power import journal
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
    return [Run(**each) for each in journal.read(path)]
