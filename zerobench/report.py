"""Report: the results as Markdown that reads well as plain text, too, and both written to a directory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tabulate import tabulate

from zerobench.errors import UsageError

Json = dict[str, Any]
Cells = list[str]

FILES = ("report.md", "results.json")
_UNKNOWN = "-"


def render(results: Json) -> str:
    """The whole report."""
    sections = [
        f"# zerobench\n\n{_headline(results)}",
        f"## Right, and how fast?\n\n{_main_table(results)}\n\n{_main_legend(results)}",
        _section("Memory on each rank, in bytes", _memory_table(results), _MEMORY_LEGEND),
        _section("Traffic of each rank in a step, in bytes", _traffic_table(results), _TRAFFIC_LEGEND),
        *_troubles(results),
        f"## Environment\n\n{_environment(results)}",
        f"## Again\n\n```\n{results['command']}\n```",
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def _section(title: str, table: str, legend: str) -> str:
    return f"## {title}\n\n{table}\n\n{legend}" if table else ""


def _headline(results: Json) -> str:
    s, text = (
        {name: "various" if value is None else value for name, value in results["settings"].items()},
        results["text"],
    )
    clipped = f"clipped at {s['clip']}" if s["clip"] else "not clipped"
    head = (
        f"{s['model']}, {s['parameters']} parameters, on {s['ranks']} ranks ({s['device']}), {s['dtype']}, "
        f"{s['accumulation']} x {s['micro_batch']} samples on each rank in a step, "
        f"{clipped}, seed {s['seed']}; {s['steps']} steps, of which {s['warmup']} to warm up."
    )
    return f"{head}\n\nText: {text['source']}, {text['bytes']:,} bytes, SHA-256 {text['sha256']}." if text else head


def _main_table(results: Json) -> str:
    headers = ["subject", "stage", "right?", "first loss", "last loss", "step, ms", "IQR, ms", "x compute", "tokens/s"]
    return _table(headers, [_main_cells(row) for row in results["rows"]], left=3)


def _main_cells(row: Json) -> Cells:
    name = [row["subject"], _or_unknown(row["stage"], "d")]
    if row["verdict"] != "ok":
        return [*name, row["verdict"], *[_UNKNOWN] * 6]
    time, loss = row["time"], row["loss"]
    low, high = time["quartiles"]
    return [
        *name,
        _right(row["judgement"]),
        _or_unknown(loss["first"], ".4f"),
        _or_unknown(loss["last"], ".4f"),
        f"{1e3 * time['median']:.1f}",
        f"{1e3 * (high - low):.1f}",
        _or_unknown(time["ratio"], ".2f"),
        _or_unknown(time["tokens_per_second"], ",.0f"),
    ]


def _right(judgement: Json | None) -> str:
    if judgement is None:
        return _UNKNOWN
    if judgement["bitwise"]:
        return "bitwise"
    used = _or_unknown(judgement["budget_used"], ".0%")
    return used if judgement["right"] else f"WRONG ({used})"


def _main_legend(results: Json) -> str:
    lines = ["step: the median over rounds of the slowest rank; x compute: the median of the ratios to compute-only."]
    budget, judgements = results["budget"], [row["judgement"] for row in results["rows"] if row["judgement"]]
    if any(judgement["bitwise"] for judgement in judgements):
        lines.append("bitwise: every loss and norm and the final parameters have the bits of the canonical trainer.")
    if budget and not all(judgement["bitwise"] for judgement in judgements):
        lines.append(
            f"A percentage: the error of the parameters after step {budget['step']} against a float64 run, as a share "
            f"of the budget, which is {budget['times']:g} times that of {budget['yardstick']}, {budget['error']:.3g}."
        )
    return "\n".join(lines)


_EXACT = "=: just what the closed form predicts, on every rank; a number in brackets: what it predicts instead."
_MEMORY_LEGEND = (
    f"Between steps, on the rank that holds most. {_EXACT}\n"
    "whole at once: the most bytes behind the model's own parameters at any collective of a step.\n"
    "peak: what the allocator gave to subject and step at the worst moment of a step."
)
_CATEGORIES = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "peak_parameters": "whole at once",
    "peak": "peak",
}


def _memory_table(results: Json) -> str:
    rows = [_memory_cells(row) for row in results["rows"] if row["memory"]]
    return _table(["subject", "stage", *_CATEGORIES.values()], rows, left=2) if rows else ""


def _memory_cells(row: Json) -> Cells:
    measured, predicted = row["memory"]["measured"], row["memory"]["predicted"]
    cells = [row["subject"], str(row["stage"])]
    for category in _CATEGORIES:
        forms = predicted and [rank.get(category) for rank in predicted]
        cells.append(_beside([rank[category] for rank in measured], forms))
    return cells


_TRAFFIC_LEGEND = f"Logical bytes, of the rank that sends most. {_EXACT}"


def _traffic_table(results: Json) -> str:
    rows = [cells for row in results["rows"] if row["traffic"] for cells in _traffic_rows(row)]
    return _table(["subject", "stage", "collective", "calls", "sent"], rows, left=3) if rows else ""


def _traffic_rows(row: Json) -> Iterator[Cells]:
    """A line for each collective that was measured or predicted on any rank, and one for their sum."""
    measured, predicted = row["traffic"]["measured"], row["traffic"]["predicted"]
    collectives = sorted({name for ledger in [*measured, *(predicted or [])] for name in ledger})
    for title, names in [*((name, [name]) for name in collectives), ("total", collectives)]:
        cells = [row["subject"], str(row["stage"]), title]
        for number in ("calls", "sent"):
            forms = predicted and [_sum(ledger, names, number) for ledger in predicted]
            cells.append(_beside([_sum(ledger, names, number) for ledger in measured], forms))
        yield cells


def _sum(ledger: Json, collectives: Sequence[str], number: str) -> int:
    return sum(ledger[name][number] for name in collectives if name in ledger)


def _beside(measured: Sequence[int | None], predicted: Sequence[int | None] | None) -> str:
    """The largest of the ranks' values, beside what was predicted for that rank, where anything was."""
    known = [value for value in measured if value is not None]
    if not known:
        return _UNKNOWN
    rank = measured.index(max(known))
    shown = f"{measured[rank]:,}"
    if not predicted or predicted[rank] is None:
        return shown
    return f"{shown} =" if list(measured) == list(predicted) else f"{shown} ({predicted[rank]:,})"


def _troubles(results: Json) -> Iterator[str]:
    """A section that says of each row that is not right why, if there is one."""
    told = [text for row in results["rows"] for text in _trouble(row)]
    if told:
        yield "## What went wrong\n\n" + "\n\n".join(told)


def _trouble(row: Json) -> Iterator[str]:
    name = f"**{row['subject']}, stage {row['stage']}**"
    if row["verdict"] == "unsupported":
        yield f"{name}: unsupported. {row['reason']}"
    elif row["verdict"] != "ok":
        yield f"{name}: {row['verdict']}\n\n```\n{row['reason']}\n```"
    elif row["judgement"] and not row["judgement"]["right"]:
        yield f"{name}: wrong\n\n```\n{row['judgement']['message']}\n```"


def _environment(results: Json) -> str:
    lines = {"zerobench": results["zerobench"], **results["environment"]}
    return "\n".join(f"- {name}: {_plain(value)}" for name, value in lines.items())


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return "none" if value is None else str(value)


def _or_unknown(value: float | None, form: str) -> str:
    return _UNKNOWN if value is None else format(value, form)


def _table(headers: Cells, rows: Sequence[Cells], left: int) -> str:
    """Aligned, the first ``left`` columns to the left."""
    align = ["left"] * left + ["right"] * (len(headers) - left)
    return tabulate(rows, headers, tablefmt="pipe", disable_numparse=True, colalign=align)


def writable(directory: Path) -> None:
    """Check that :func:`write` could write to ``directory``, without changing anything.

    Raises:
        UsageError: it could not.
    """
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UsageError(f"cannot write a report to {str(directory)!r}: {str(existing)!r} is not a directory")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write a report to {str(directory)!r}: no permission; name another with --out")
    for name in FILES:
        if (directory / name).is_dir():
            raise UsageError(f"cannot write a report to {str(directory)!r}: its {name!r} is a directory")


def write(directory: Path, results: Json) -> None:
    """Write the report and the results, each under a temporary name first, so that both appear or none."""
    texts = (render(results), json.dumps(results, indent=1, allow_nan=False) + "\n")
    writable(directory)
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undo:
        temporary = [directory / f".{name}.{os.getpid()}" for name in FILES]
        for path, content in zip(temporary, texts, strict=True):
            undo.callback(path.unlink, missing_ok=True)
            path.write_text(content, encoding="utf-8")
        for path, name in zip(temporary, FILES, strict=True):
            path.replace(directory / name)
