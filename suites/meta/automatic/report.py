"""The report on the automatic mutants: a page, and the same numbers as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerobench.suites.meta.automatic.enumeration import Mutation
from zerobench.suites.meta.automatic.exclusions import CODE, FILES
from zerobench.suites.meta.automatic.trying import Result
from zerobench.suites.support.checkout import ROOT

#: The classes of survivors, kept by hand with the reason of each.
SURVIVORS = ROOT / "reports" / "power" / "survivors.json"
CLASSES: dict[str, str] = {
    "equivalent": "no Scenario can tell it from the engine",
    "performance": "right, with the same bytes; only time, memory between readings or the number of waits differs",
    "other suite": "no training shows it; suites/api (calls, misuse) or suites/kernels (rare roundings) judges it",
    "gap": "a property should notice it, and none does",
}
_UNKNOWN = "unclassified"
_SHARES = ("killed of tried", "killed of noticeable")


@dataclass(frozen=True)
class Survivor:
    """The class of a survivor, and the reason in a sentence; ``edit`` is the edit that was read."""

    kind: str
    reason: str
    edit: str


@dataclass(frozen=True)
class Row:
    """Mutants of one file or operator: all there are, and of those tried, how many ended in each way."""

    name: str
    mutants: int
    tried: int
    killed: int
    unreached: int
    survived: Counter[str]

    @property
    def noticeable(self) -> int:
        """Mutants tried, without those that change nothing that a property judges."""
        return self.tried - sum(self.survived[kind] for kind in ("equivalent", "performance"))

    @property
    def shown(self) -> int:
        """Those that training shows: neither left to another suite nor in code that no check runs."""
        return self.noticeable - self.survived["other suite"] - self.unreached

    def plain(self) -> dict[str, Any]:
        """The row as JSON takes it."""
        counts = {"mutants": self.mutants, "tried": self.tried, "killed": self.killed}
        return {"name": self.name, **counts, "not reached": self.unreached, "survived": dict(self.survived)}

    def cells(self) -> list[str]:
        """The row as the page shows it."""
        survived = [str(self.survived[kind]) for kind in (*CLASSES, _UNKNOWN)]
        counts = [self.mutants, self.tried, self.killed, *survived, self.unreached]
        return [self.name, *map(str, counts), share(self.killed, self.tried), share(self.killed, self.noticeable)]


def read_survivors() -> dict[str, Survivor]:
    """The survivors that someone has read, by the mutant's id."""
    plain = json.loads(SURVIVORS.read_text(encoding="utf-8")) if SURVIVORS.exists() else {}
    return {id_: Survivor(each["class"], each["reason"], each["edit"]) for id_, each in plain.items()}


def edit(result: Result) -> str:
    """The edit in one line."""
    return f"{result.before} -> {result.after}"


def class_of(result: Result, survivors: dict[str, Survivor]) -> str:
    """The survivor's class, unless its code has changed since someone read it."""
    known = survivors.get(result.id)
    return known.kind if known and known.edit == edit(result) else _UNKNOWN


def write(folder: Path, mutations: Sequence[Mutation], results: Sequence[Result]) -> Row:
    """Write ``report.md`` and ``summary.json``; returns the row of all mutants."""
    survivors = read_survivors()
    by_file = _rows(mutations, results, survivors, lambda each: each.file)
    by_operator = _rows(mutations, results, survivors, lambda each: each.operator)
    [total] = _rows(mutations, results, survivors, lambda each: "all")
    tables = {"all": [total], "files": by_file, "operators": by_operator}
    plain = {name: [row.plain() for row in rows] for name, rows in tables.items()}
    (folder / "summary.json").write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(_page(total, by_file, by_operator, results, survivors), encoding="utf-8")
    return total


def _rows(
    mutations: Sequence[Mutation],
    results: Sequence[Result],
    survivors: dict[str, Survivor],
    name: Callable[[Mutation | Result], str],
) -> list[Row]:
    rows = []
    for group, mutants in Counter(map(name, mutations)).items():
        here = [result for result in results if name(result) == group]
        ends = Counter(result.status for result in here)
        kinds = Counter(class_of(result, survivors) for result in here if result.status == "survived")
        rows.append(Row(group, mutants, len(here), ends["killed"], ends["not reached"], kinds))
    return rows


def _page(
    total: Row, files: list[Row], operators: list[Row], results: Sequence[Result], survivors: dict[str, Survivor]
) -> str:
    titles = ["", "mutants", "tried", "killed", *CLASSES, _UNKNOWN, "not reached", *_SHARES]
    left_out = [*(f"`engine/{file}`: {reason}" for file, reason in FILES.items()), *CODE]
    parts = [
        "# Automatic mutants",
        _sentences(total),
        _list(f"{kind}: {meaning}" for kind, meaning in CLASSES.items()),
        table(titles, [row.cells() for row in [*files, total]]),
        table(titles, [row.cells() for row in [*operators, total]]),
        "## Survivors",
        _survivors(results, survivors),
        "## Not reached",
        _not_reached(results),
        "## What kills",
        _killers(results),
        "## Code without mutants",
        _list(left_out),
    ]
    return "\n\n".join(parts) + "\n"


def _sentences(total: Row) -> str:
    return (
        f"{total.tried} of {total.mutants} mutants of the engine were tried. Equivalence and accounting killed\n"
        f"{total.killed} of them, {share(total.killed, total.tried)}. Without the survivors that are equivalent or\n"
        f"differ in performance only, they killed {share(total.killed, total.noticeable)}. No check runs the code of\n"
        f"{total.unreached}, and {total.survived['other suite']} are left to other suites; of the rest they killed "
        f"{share(total.killed, total.shown)}."
    )


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {each}" for each in items)


def _survivors(results: Sequence[Result], survivors: dict[str, Survivor]) -> str:
    rows = []
    for result in results:
        if result.status == "survived":
            kind = class_of(result, survivors)
            reason = survivors[result.id].reason if kind != _UNKNOWN else ""
            where = f"{result.file}:{result.line} {result.function}"
            rows.append([where, f"`{_cell(edit(result))}`", kind, _cell(reason), str(result.checks)])
    return table(["place", "edit", "class", "reason", "checks"], rows)


def _not_reached(results: Sequence[Result]) -> str:
    counts = Counter((result.file, result.function) for result in results if result.status == "not reached")
    return table(["file", "function", "mutants"], [[file, name, str(count)] for (file, name), count in counts.items()])


def _killers(results: Sequence[Result]) -> str:
    killed = [result for result in results if result.status == "killed"]
    by = Counter(result.by for result in killed).most_common()
    how = Counter(result.how for result in killed).most_common()
    tables = [
        table([title, "mutants"], [[name, str(count)] for name, count in counts])
        for title, counts in (("property", by), ("failure", how))
    ]
    return "\n\n".join(tables)


def table(titles: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def share(part: int, whole: int) -> str:
    """A share in percent, rounded down to a tenth; empty if there is no whole."""
    return f"{part * 1000 // whole / 10:.1f} %" if whole else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
