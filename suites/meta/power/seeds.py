"""Runs of released engines with the draws of a seed, and their record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zerobench.suites.meta.power import journal
from zerobench.suites.support.checkout import ROOT

#: The published record.
PUBLISHED = ROOT / "reports" / "power" / "released.jsonl"


@dataclass(frozen=True)
class Seed:
    """One engine with one seed: the Scenarios that ran, the known findings, and the properties with another one."""

    engine: str
    version: str
    profile: str
    seed: int
    scenarios: int
    known: list[str]
    unknown: list[str]


def recorded(path: Path = PUBLISHED) -> list[Seed]:
    """The runs of a record."""
    return [Seed(**each) for each in journal.read(path)]
