"""Matrix: properties or their areas as rows, engines as columns; a cell has the verdicts of all stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from zerobench.conform.areas import AREAS, area_of
from zerobench.conform.running import slug
from zerobench.conform.verdicts import FINDING, KNOWN, NOT_ENOUGH, NOT_OFFERED, PASS, Json

#: A cell has the first of these verdicts that one of its stages has.
_BY_WEIGHT = (FINDING, NOT_ENOUGH, KNOWN, PASS, NOT_OFFERED)


@dataclass(frozen=True)
class Cell:
    """A property of an engine, or an area of properties; ``parts`` are its tests, one for each stage if the stages are
    told apart."""

    engine: str
    words: str
    parts: tuple[Json, ...]

    @property
    def verdict(self) -> str:
        """The gravest of the parts; a stage that the engine does not offer takes nothing from the others."""
        return next(each for each in _BY_WEIGHT if each in {part["verdict"] for part in self.parts})

    @property
    def text(self) -> str:
        """The verdict in a word, with the numbers of Scenarios that ran and of known findings, or with the place of
        findings."""
        if self.verdict == FINDING:
            return self._place
        ran = sum(cell["run"] for part in self.parts for cell in part["cells"])
        if self.verdict == KNOWN:
            return f"pass {ran}, {len(self.known)} known" if ran else f"{len(self.known)} known"
        return f"{self.verdict} {ran}" if ran and self.verdict in (PASS, NOT_ENOUGH) else self.verdict

    @property
    def _place(self) -> str:
        """The stages of the findings; in an area, how many of its properties have one."""
        if (properties := len(_properties(self.parts))) > 1:
            return f"{FINDING} in {len(_properties(self.findings))} of {properties}"
        stages = ", ".join(filter(None, (_argument(part) for part in self.findings)))
        return f"{FINDING} at stage {stages}" if stages else FINDING

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
        if self.findings:
            return slug(f"{self.engine} {_words(self.findings[0]['name'])}")
        kind = {KNOWN: "known findings", NOT_OFFERED: "reasons", NOT_ENOUGH: "reasons"}
        return None if self.verdict == PASS else slug(f"{self.engine} {kind[self.verdict]}")

    @property
    def reason(self) -> str:
        """The reason of the verdict "not offered" or "not enough"."""
        return next((part["reason"] for part in self.parts if part["reason"]), "no reason was given")


def cells(engine: Json) -> dict[str, Cell]:
    """The cells of an engine, by the words of the property, in the suite's order."""
    return _grouped(engine, _words)


def by_area(engine: Json) -> dict[str, Cell]:
    """The cells of an engine, by area: each has the parts of all properties of its area."""
    found = _grouped(engine, lambda name: area_of(_words(name)))
    return {area: found[area] for area in [*AREAS, *found] if area in found}


def rows(columns: Sequence[dict[str, Cell]]) -> Iterator[tuple[str, list[Cell | None]]]:
    """Each row that at least one engine offers, with the cell of each engine; None if it has no such row."""
    for words in dict.fromkeys(words for column in columns for words in column):
        row = [column.get(words) for column in columns]
        if any(cell is not None and cell.verdict != NOT_OFFERED for cell in row):
            yield words, row


def _grouped(engine: Json, row: Callable[[str], str]) -> dict[str, Cell]:
    """The parts of an engine as cells, by the row that a test's name belongs to."""
    found: dict[str, list[Json]] = {}
    for part in engine["properties"]:
        found.setdefault(row(part["name"]), []).append(part)
    return {words: Cell(engine["subject"], words, tuple(parts)) for words, parts in found.items()}


def _properties(parts: Iterable[Json]) -> set[str]:
    """The properties of which a part says more than that it is not offered."""
    return {_words(part["name"]) for part in parts if part["verdict"] != NOT_OFFERED}


def _words(name: str) -> str:
    return name.partition("::test_")[2].partition("[")[0].replace("_", " ")


def _argument(part: Json) -> str:
    """The stage that a test's name has; empty if the test has all stages."""
    return str(part["name"].partition("[")[2].removesuffix("]"))
