"""Frames: the results as pandas frames, the one source of every number that a report shows, in a table or in a plot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from zerobench.report.knobs import job, knobs, label
from zerobench.results.comparison import state

Json = dict[str, Any]

SPLIT = ("forward", "backward", "communication", "optimizer")
STATES = ("parameters", "gradients", "optimizer")
#: Where states lie that are not on the device.
OFF = ("host", "file")
TOTAL = "total"
_TYPES = {"judged": "bool", "stage": "Int64", "on_device": "Int64", "peak": "Int64"}
_KEY = ["row", "part", "name", "number"]


@dataclass(frozen=True)
class Largest:
    """A metric on the rank where it is largest, beside what was predicted for that rank."""

    measured: int
    predicted: int | None
    agrees: bool  # measured and predicted are the same on every rank


#: Of one part (memory, traffic, offload) of one row: by name and number; what no rank measured is not there.
Ledger = dict[str, dict[str, Largest]]


@dataclass(frozen=True)
class Frames:
    """What the report draws on; everything is known by the number of the row in the results.

    ``cases`` has a line for each row, ``ledgers`` one for each metric on each rank. ``knobs`` has, as text, the
    Scenario's fields that differ between rows; ``job``, in ``cases``, those that must agree for costs to be compared.
    """

    results: Json
    cases: pd.DataFrame
    knobs: pd.DataFrame
    ledgers: pd.DataFrame
    largest: dict[tuple[int, str], Ledger]

    @classmethod
    def of(cls, results: Json) -> Frames:
        """The frames of results of schema 2."""
        rows = results["rows"]
        settings = knobs([row["scenario"] for row in rows], [row["stage"] for row in rows])
        ledgers = pd.DataFrame(
            [line for index, row in enumerate(rows) for line in _lines(index, row)],
            columns=[*_KEY, "rank", "measured", "predicted"],
        ).astype({"measured": "Int64", "predicted": "Int64"})
        cases = [
            _case(row) | {"label": label(row, each), "job": job(each)} for row, each in zip(rows, settings, strict=True)
        ]
        columns = [*_case(defaultdict(lambda: None)), "label", "job"]  # also where there is no row
        lines = pd.DataFrame(cases, columns=columns).astype(_TYPES)
        return cls(results, lines, pd.DataFrame(settings), ledgers, _largest(ledgers))

    def ledger(self, row: int, part: str) -> Ledger:
        """What was measured of a part; empty where nothing was."""
        return self.largest.get((row, part), {})


def _case(row: Json) -> Json:
    judgement, loss, time = row["judgement"] or {}, row["loss"] or {}, row["time"] or {}
    low, high = time.get("quartiles") or (None, None)
    split = time.get("split") or {}
    return {
        "subject": row["subject"],
        "stage": row["stage"],
        "state": state(row),
        "judged": bool(judgement),
        "bitwise": judgement.get("bitwise"),
        "error": judgement.get("error"),
        "budget_used": judgement.get("budget_used"),
        "first_loss": loss.get("first"),
        "last_loss": loss.get("last"),
        "seconds": time.get("median"),
        "low": low,
        "high": high,
        "spread": None if low is None or high is None else high - low,
        "ratio": time.get("ratio"),
        "tokens_per_second": time.get("tokens_per_second"),
        "samples_per_second": time.get("samples_per_second"),
        "flops": time.get("flops"),
        "utilisation": time.get("utilisation"),
        "offload": (row["offload"] or {}).get("setting"),
        "wire": _wire(row),
        **_held(row),
    } | {name: split.get(name) for name in SPLIT}


def _held(row: Json) -> Json:
    """Bytes of the rank with most: of state on the device, and at the peak."""
    ranks = (row["memory"] or {}).get("measured") or []
    peaks = [rank["peak"] for rank in ranks if rank["peak"] is not None]
    on_device = (sum(rank[name] for name in STATES) for rank in ranks)
    return {"on_device": max(on_device, default=None), "peak": max(peaks, default=None)}


def _wire(row: Json) -> float | None:
    """Bytes on the wire for each byte that a rank received."""
    traffic = row["traffic"] or {}
    received = sum(_sum(ledger, list(ledger), "received") for ledger in traffic.get("measured") or [])
    wire = traffic.get("wire")
    return wire / received if wire is not None and received else None


def _lines(index: int, row: Json) -> Iterator[tuple[Any, ...]]:
    """Of each metric on each rank: the row, part, name, number and rank, and the bytes or calls."""
    for part, ledgers in (("memory", _bytes), ("traffic", _collectives), ("offload", _bytes)):
        both = row[part] or {}
        measured, predicted = both.get("measured") or [], both.get("predicted")
        forms = predicted or [None] * len(measured)
        names = dict.fromkeys(name for each in [*measured, *(predicted or [])] for name in sorted(each))
        for rank, (ledger, form) in enumerate(zip(measured, forms, strict=True)):
            for name, number, value, expected in ledgers(list(names), ledger, form):
                yield index, part, name, number, rank, value, expected


def _bytes(names: list[str], measured: Json, predicted: Json | None) -> Iterator[tuple[Any, ...]]:
    for name in names:
        yield name, "bytes", measured.get(name), (predicted or {}).get(name)


def _collectives(names: list[str], measured: Json, predicted: Json | None) -> Iterator[tuple[Any, ...]]:
    """Calls and bytes of each collective and of all of them; one that is not in a ledger was not called."""
    for title, some in [*((name, [name]) for name in names), (TOTAL, names)]:
        for number in ("calls", "sent", "received"):
            expected = None if predicted is None else _sum(predicted, some, number)
            yield title, number, _sum(measured, some, number), expected


def _sum(ledger: Json, collectives: list[str], number: str) -> int:
    return sum(ledger[name][number] for name in collectives if name in ledger)


def _largest(ledgers: pd.DataFrame) -> dict[tuple[int, str], Ledger]:
    ledgers = ledgers.assign(agrees=(ledgers["measured"] == ledgers["predicted"]).fillna(False))
    agrees = ledgers.groupby(_KEY, sort=False)["agrees"].all().to_dict()
    known = ledgers.dropna(subset=["measured"])
    top = known.loc[known.astype({"measured": "int64"}).groupby(_KEY, sort=False)["measured"].idxmax()]
    found: dict[tuple[int, str], Ledger] = {}
    for row, part, name, number, _, measured, predicted, _ in top.itertuples(index=False):
        expected = None if pd.isna(predicted) else int(predicted)
        largest = Largest(int(measured), expected, bool(agrees[row, part, name, number]))
        found.setdefault((row, part), {}).setdefault(name, {})[number] = largest
    return found
