"""Results: a line of JSON for each mutant that was tried, written at once, so that a later run goes on from there."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from zerobench.suites.meta.automatic.enumeration import Mutation
from zerobench.suites.meta.automatic.trying import Result


class Results:
    """The last result of each mutant, in ``mutants.jsonl`` of a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "mutants.jsonl"
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # an interrupted session has left half a line
            self.path.write_text(whole, encoding="utf-8")
        self._by_id = {result.id: result for result in map(_read, whole.splitlines())}

    def add(self, result: Result) -> None:
        """Keep a result, and write it before the next mutant is tried."""
        self._by_id[result.id] = result
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(result))

    def of(self, mutation: Mutation) -> Result | None:
        """The mutant's result; None if it was not tried since its function changed."""
        result = self._by_id.get(mutation.id)
        current = (mutation.before, mutation.after, mutation.scope)
        return result if result and (result.before, result.after, result.source) == current else None

    def current(self, mutations: Iterable[Mutation]) -> list[Result]:
        """The results of these mutants, in their order."""
        return [result for mutation in mutations if (result := self.of(mutation))]

    def keep(self, results: Iterable[Result]) -> None:
        """Leave these lines alone in the file: each mutant once, and none of an engine of the past."""
        self.path.write_text("".join(map(_line, results)), encoding="utf-8")


def _read(line: str) -> Result:
    return Result(**json.loads(line))


def _line(result: Result) -> str:
    return json.dumps(result.plain()) + "\n"
