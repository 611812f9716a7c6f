"""Document: the contents of a report; Markdown and HTML render this and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from zerobench.report.frame import Frames
from zerobench.report.summary import Point, summarize
from zerobench.report.table import Table
from zerobench.report.tables import make_tables
from zerobench.results import Json
from zerobench.results.comparison import reason_of
from zerobench.verdict import PASSED, Verdict


@dataclass(frozen=True)
class Trouble:
    """The reason if a case is not right or was not measured."""

    label: str
    verdict: Verdict
    message: str


@dataclass(frozen=True)
class Document:
    """The parts of a report in order; the text is not escaped."""

    summary: list[Point]
    setting: list[str]
    tables: list[Table]
    troubles: list[Trouble]
    environment: list[tuple[str, str]]
    commands: str


def compose(frames: Frames) -> Document:
    """The report on results."""
    results = frames.results
    return Document(
        summary=summarize(frames),
        setting=list(_setting(results)),
        tables=make_tables(frames),
        troubles=list(_troubles(frames)),
        environment=[
            (name, _plain(value))
            for name, value in {"zerobench": results["zerobench"], **results["environment"]}.items()
        ],
        commands=results["command"],
    )


def _setting(results: Json) -> Iterator[str]:
    """The known settings that all cases share."""
    settings, text = dict(results["settings"] or {}), results["text"]
    shared = [f"{name.replace('_', ' ')} {_plain(value)}" for name, value in settings.items() if value is not None]
    if shared:
        yield f"{', '.join(shared)}."
    if text:
        yield f"Text: {text['source']}, {text['bytes']:,} bytes, SHA-256 {text['sha256']}."


def _troubles(frames: Frames) -> Iterator[Trouble]:
    for case, label in zip(frames.results["cases"], frames.cases["label"], strict=True):
        if case["verdict"] not in PASSED:
            yield Trouble(label, case["verdict"], reason_of(case))
        elif case["reason"]:  # it ran, and a part of it was not measured
            yield Trouble(label, "not measured", case["reason"])


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:,}" if isinstance(value, int) and value > 9999 else str(value)
