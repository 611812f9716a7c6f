"""Matrix: the properties as rows and the engines as columns; a cell has the verdicts of all stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zerobench.conform.running import slug
from zerobench.conform.verdicts import FINDING, KNOWN, NOT_ENOUGH, NOT_OFFERED, PASS, Json

#: A cell has the first of these verdicts that one of its stages has.
_BY_WEIGHT = (FINDING, NOT_ENOUGH, KNOWN, PASS, NOT_OFFERED)


@dataclass(frozen=True)
class Cell:
    """A property of an engine; ``parts`` are its tests, which are one for each stage if the stages are told apart."""

    engine: str
    words: str
    parts: tuple[Json, ...]

    @property
    def verdict(self) -> str:
        """The gravest of the parts; a stage that the engine does not offer takes nothing from the others."""
        return next(each for each in _BY_WEIGHT if each in {part["verdict"] for part in self.parts})

    @property
    def text(self) -> str:
        """The verdict in a word, with the numbers of Scenarios that ran and of known findings, or with the stages of
        findings."""
        if self.verdict == FINDING:
            stages = ", ".join(filter(None, (_argument(part) for part in self.findings)))
            return f"finding at stage {stages}" if stages else FINDING
        ran = sum(cell["run"] for part in self.parts for cell in part["cells"])
        if self.verdict == KNOWN:
            return f"pass {ran}, {len(self.known)} known" if ran else f"{len(self.known)} known"
        return f"{self.verdict} {ran}" if ran and self.verdict in (PASS, NOT_ENOUGH) else self.verdict

    @property
    def known(self) -> set[str]:
        """The known findings whose Scenarios were set aside."""
        return {each for part in self.parts for each in part["known"]}

    @property
    def findings(self) -> list[Json]:
        """The parts with a finding."""
        return [part for part in self.parts if part["verdict"] == FINDING]

    @property
    def target(self) -> str | None:
        """The anchor of the reason; None for a pass."""
        kind = {FINDING: self.words, KNOWN: "known findings", NOT_OFFERED: "reasons", NOT_ENOUGH: "reasons"}
        return None if self.verdict == PASS else slug(f"{self.engine} {kind[self.verdict]}")

    @property
    def reason(self) -> str:
        """The reason of the verdict "not offered" or "not enough"."""
        return next((part["reason"] for part in self.parts if part["reason"]), "no reason was given")


def cells(engine: Json) -> dict[str, Cell]:
    """The cells of an engine, by the words of the property, in the suite's order."""
    found: dict[str, tuple[Json, ...]] = {}
    for part in engine["properties"]:
        words = _words(part["name"])
        found[words] = (*found.get(words, ()), part)
    return {words: Cell(engine["subject"], words, parts) for words, parts in found.items()}


def rows(engines: Sequence[Json]) -> Iterator[tuple[str, list[Cell | None]]]:
    """Each property that at least one engine offers, with the cell of each engine; None if it has no such property."""
    columns = [cells(engine) for engine in engines]
    for words in dict.fromkeys(words for column in columns for words in column):
        row = [column.get(words) for column in columns]
        if any(cell is not None and cell.verdict != NOT_OFFERED for cell in row):
            yield words, row


def _words(name: str) -> str:
    return name.partition("::test_")[2].partition("[")[0].replace("_", " ")


def _argument(part: Json) -> str:
    """The stage that a test's name has; empty if the test has all stages."""
    return str(part["name"].partition("[")[2].removesuffix("]"))
