"""Frames: the results as pandas frames, the one source of every number that a report shows, in a table or in a plot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from zerobench.report.knobs import differing_fields, job, label
from zerobench.report.table import Largest
from zerobench.results import Json

SPLIT = ("forward", "backward", "communication", "optimizer")
STATES = ("parameters", "gradients", "optimizer")
#: What holds the states that are not on the device.
OFF = ("host", "file")
TOTAL = "total"
_TYPES = {"judged": "bool", "stage": "Int64", "on_device": "Int64", "peak": "Int64"}
_KEY = ["case", "part", "name", "number"]


#: Of one part (memory, traffic, offload) of one case: by name and number; what no rank measured is not there.
Ledger = dict[str, dict[str, Largest]]


@dataclass(frozen=True)
class Frames:
    """The numbers of a report; everything is known by the number of the case in the results.

    ``cases`` has a line for each case, ``ledgers`` one for each metric on each rank. ``knobs`` has, as text, the
    Scenario's fields that differ between cases; ``job``, in ``cases``, those that must agree for costs to be compared.
    """

    results: Json
    cases: pd.DataFrame
    knobs: pd.DataFrame
    ledgers: pd.DataFrame
    largest: dict[tuple[int, str], Ledger]

    @classmethod
    def of(cls, results: Json) -> Frames:
        """The frames of results of the newest schema."""
        cases = results["cases"]
        settings = differing_fields([case["scenario"] for case in cases], [case["stage"] for case in cases])
        ledgers = pd.DataFrame(
            [line for index, case in enumerate(cases) for line in _lines(index, case)],
            columns=[*_KEY, "rank", "measured", "predicted"],
        ).astype({"measured": "Int64", "predicted": "Int64"})
        values = [
            _case(case) | {"label": label(case, each), "job": job(each)}
            for case, each in zip(cases, settings, strict=True)
        ]
        columns = [*_case(defaultdict(lambda: None)), "label", "job"]  # also if there is no case
        lines = pd.DataFrame(values, columns=columns).astype(_TYPES)
        return cls(results, lines, pd.DataFrame(settings), ledgers, _largest(ledgers))

    def ledger(self, case: int, part: str) -> Ledger:
        """What was measured of a part; empty if nothing was."""
        return self.largest.get((case, part), {})


def _case(case: Json) -> Json:
    judgement, loss, time = case["judgement"] or {}, case["loss"] or {}, case["time"] or {}
    low, high = time.get("quartiles") or (None, None)
    split = time.get("split") or {}
    return {
        "subject": case["subject"],
        "stage": case["stage"],
        "verdict": case["verdict"],
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
        "offload": (case["offload"] or {}).get("setting"),
        "wire": _wire(case),
        **_held(case),
    } | {name: split.get(name) for name in SPLIT}


def _held(case: Json) -> Json:
    """Bytes of the rank with most: of state on the device, and at the peak."""
    ranks = (case["memory"] or {}).get("measured") or []
    peaks = [rank["peak"] for rank in ranks if rank["peak"] is not None]
    on_device = (sum(rank[name] for name in STATES) for rank in ranks)
    return {"on_device": max(on_device, default=None), "peak": max(peaks, default=None)}


def _wire(case: Json) -> float | None:
    """Bytes on the wire for each byte that a rank received."""
    traffic = case["traffic"] or {}
    received = sum(_sum(ledger, list(ledger), "received") for ledger in traffic.get("measured") or [])
    wire = traffic.get("wire")
    return wire / received if wire is not None and received else None


def _lines(index: int, case: Json) -> Iterator[tuple[Any, ...]]:
    """Of each metric on each rank: the case, part, name, number and rank, and the bytes or calls."""
    for part, ledgers in (("memory", _bytes), ("traffic", _collectives), ("offload", _bytes)):
        both = case[part] or {}
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
    for case, part, name, number, _, measured, predicted, _ in top.itertuples(index=False):
        expected = None if pd.isna(predicted) else int(predicted)
        largest = Largest(int(measured), expected, bool(agrees[case, part, name, number]))
        found.setdefault((case, part), {}).setdefault(name, {})[number] = largest
    return found
