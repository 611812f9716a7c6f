"""A comparison of two results, as Markdown for people and as plain JSON values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from zerobench.report.markdown import escape, fence, render_table
from zerobench.report.table import UNKNOWN, Column, Table, scaled
from zerobench.results import Json
from zerobench.results.comparison import Change, Comparison, Timing, Transition

_VERDICTS = {
    0: "Nothing is worse.",
    1: "WORSE: a case fails that did not, or has other bits, or bytes or calls grew.",
    2: "NOT ENOUGH: nothing was measured, or less than in the base.",
}


def as_json(found: Comparison) -> Json:
    """All of a comparison, with its exit code."""
    return {"exit_code": found.exit_code, **dataclasses.asdict(found)}


def render(found: Comparison) -> str:
    """The verdict, then what broke, then what changed, then the times."""
    sections = [
        f"# zerobench compare\n\n**{_VERDICTS[found.exit_code]}** {len(found.compared)} cases were measured in both.",
        *_transitions("Newly failing", found.newly_failing),
        *_transitions("Fixed", found.fixed),
        *_transitions("Failing as before", found.still_failing),
        *_list("Other bits on the same platform", found.moved),
        *_list("Gone, or no longer measured", found.gone),
        *_list("New", found.new),
        *_list("Metrics that only the base has", [f"{case}: {metric}" for case, metric in found.unmeasured]),
        *_list("Metrics that only the head has", [f"{case}: {metric}" for case, metric in found.appeared]),
        *_changes(found.changes),
        *_timings(found.timings),
    ]
    return "\n\n".join(sections) + "\n"


def _transitions(title: str, those: Sequence[Transition]) -> Iterator[str]:
    if those:
        yield f"## {title}"
    for each in those:
        became = f"**{escape(each.case)}**: {each.base}, then {each.head}"
        yield f"{became}\n\n{fence(each.reason)}" if each.reason else became


def _list(title: str, those: Sequence[str]) -> Iterator[str]:
    if those:
        yield f"## {title}\n\n" + "\n".join(f"- {escape(each)}" for each in those)


def _changes(changes: Sequence[Change]) -> Iterator[str]:
    """What grew first."""
    columns = [
        *(Column(name, text=True) for name in ("case", "metric", "change")),
        *(Column(name) for name in ("rank", "base", "head", "difference")),
    ]
    ordered = sorted(changes, key=lambda change: (change.kind != "exact", not change.worse))
    if ordered:
        legend = (
            "Of the rank that changed most. bounded: peaks and shares of an error budget, which judge nothing here."
        )
        yield _table("Changes", columns, [_change(each) for each in ordered], legend)


def _change(change: Change) -> list[str]:
    base, head = change.base[change.rank] or 0, change.head[change.rank] or 0
    kind = "bounded" if change.kind == "bounded" else "WORSE" if change.worse else "better"
    rank = str(change.rank) if len(change.base) > 1 else UNKNOWN
    form = ",d" if isinstance(base, int) and isinstance(head, int) else ".3f"
    return [change.case, change.metric, kind, rank, f"{base:{form}}", f"{head:{form}}", f"{head - base:+{form}}"]


def _timings(timings: Sequence[Timing]) -> Iterator[str]:
    columns = [Column("case", text=True), *(Column(name) for name in ("base, ms", "head, ms", "ratio", "between"))]
    rows = [
        [
            each.case,
            scaled(each.base, 1e-3),
            scaled(each.head, 1e-3),
            f"{each.ratio:.2f}",
            f"{each.low:.2f} to {each.high:.2f}",
        ]
        for each in timings
    ]
    if rows:
        legend = (
            "Not gated: two files were not measured in alternation. between: what the quartiles of both leave open."
        )
        yield _table("Time, not gated", columns, rows, legend)


def _table(title: str, columns: list[Column], rows: list[list[str]], legend: str) -> str:
    return f"## {title}\n\n{render_table(Table(title, columns, rows, [legend]))}"
