"""Table: what Markdown and HTML have in common, and how each kind of number is written in both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

UNKNOWN = "-"


@dataclass(frozen=True)
class Largest:
    """A metric on the rank that has most of it, beside the value predicted for that rank."""

    measured: int
    predicted: int | None
    agrees: bool  # measured and predicted are the same on every rank


@dataclass(frozen=True)
class Column:
    """A column's title, which direction is better, and whether it holds text, to the left, or numbers."""

    title: str
    better: Literal["", "less", "more"] = ""
    text: bool = False


@dataclass(frozen=True)
class Table:
    """Cells as they are shown, but for what Markdown and HTML must escape."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    legend: Sequence[str] = ()


def known(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> tuple[list[Column], list[list[str]]]:
    """Without the columns in which no row says anything."""
    kept = [at for at in range(len(columns)) if any(row[at] != UNKNOWN for row in rows)]
    return [columns[at] for at in kept], [[row[at] for at in kept] for row in rows]


def is_known(value: float | None) -> bool:
    """Whether there is a value; a frame has NaN if a result has none."""
    return value is not None and not math.isnan(value)


def number(value: float | None, form: str) -> str:
    """A value by a format, or what stands for none."""
    return format(value, form) if value is not None and is_known(value) else UNKNOWN


def scaled(value: float | None, unit: float) -> str:
    """A value in a unit, with one decimal from 10 on and three digits below: 1,234.5, 12.3, 1.23, 0.123, 0.0012."""
    if value is None or not is_known(value):
        return UNKNOWN
    size = abs(value / unit)
    digits = 1 if size >= 10 or size == 0 else min(2 - math.floor(math.log10(size)), 4)
    return f"{value / unit:,.{digits}f}"


def beside(largest: Largest | None) -> str:
    """Measured beside predicted: ``n =`` if they agree on every rank, else ``n (predicted)``."""
    if largest is None:
        return UNKNOWN
    if largest.predicted is None:
        return f"{largest.measured:,}"
    return f"{largest.measured:,} =" if largest.agrees else f"{largest.measured:,} ({largest.predicted:,})"
