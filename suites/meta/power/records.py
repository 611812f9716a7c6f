"""Records: one line of JSON for each engine that was tried, written at once, so that a later session goes on there."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from zerobench.suites.meta.points import place_of
from zerobench.suites.meta.power import journal
from zerobench.suites.meta.power.catching import Caught
from zerobench.suites.support.checkout import ROOT

#: The published records.
PUBLISHED = ROOT / "reports" / "power" / "historical.jsonl"
#: An engine as it is, or without its promise of bits.
Promise = Literal["bits", "none"]


@dataclass(frozen=True)
class Record:
    """A wrong engine that was tried: the property that failed, the Scenarios until then and the place; 0 and empty if
    none failed."""

    mutant: str
    promise: Promise
    property: str = ""
    scenarios: int = 0
    place: str = ""

    @classmethod
    def of(cls, mutant: str, promise: Promise, caught: Caught | None) -> Record:
        """The record of a trial."""
        if caught is None:
            return cls(mutant, promise)
        return cls(mutant, promise, caught.property, caught.scenarios, str(place_of(caught.failure).part))


class Records:
    """The last record of each engine and promise, in a file."""

    def __init__(self, path: Path = PUBLISHED) -> None:
        self.path = path
        made = (Record(**each) for each in journal.read(path))
        self._found = {(record.mutant, record.promise): record for record in made}

    def of(self, mutant: str, promise: Promise) -> Record | None:
        """The record; None if this engine was not tried."""
        return self._found.get((mutant, promise))

    def add(self, record: Record) -> None:
        """Keep a record, and write all of them, by name, as a whole."""
        self._found[record.mutant, record.promise] = record
        journal.write(self.path, (asdict(each) for _, each in sorted(self._found.items())))
