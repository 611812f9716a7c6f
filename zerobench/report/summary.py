"""Summary: a report in ten seconds: is it right, what was not measured, which case is cheapest."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from zerobench.report.frame import Frames
from zerobench.report.table import is_known, number, scaled
from zerobench.results.identity import COMPUTE_ONLY
from zerobench.verdict import FAILING, PASSED

#: (what it is about, what there is to say)
Point = tuple[str, str]

_NAMED = 3  # this many cases are named, of more only the number
_JOBS = 4  # of more jobs than these, only the tables tell what is cheapest


def summarize(frames: Frames) -> list[Point]:
    """The points, the most important first."""
    return [*_right(frames), *_not_measured(frames), *_predicted(frames), *_cheapest(frames)]


def _subjects(frames: Frames) -> pd.DataFrame:
    return frames.cases[frames.cases["subject"] != COMPUTE_ONLY]


def _right(frames: Frames) -> Iterator[Point]:
    cases = _subjects(frames)
    judged = cases[cases["judged"]]
    wrong = judged[judged["verdict"] == "wrong"]
    if len(wrong):
        yield "WRONG", f"{len(wrong)} of {len(judged)} judged cases: {_named(wrong)}."
    elif len(judged):
        bitwise = int(judged["bitwise"].eq(True).sum())
        yield "Right", f"all {len(judged)} judged cases, {bitwise} of them bit for bit."
    elif len(cases):
        yield "Right?", "no case was judged."


def _not_measured(frames: Frames) -> Iterator[Point]:
    for verdict in (*sorted(FAILING - {"wrong"}), "unsupported", "not measured"):
        those = frames.cases[frames.cases["verdict"] == verdict]
        if len(those):
            yield verdict[0].upper() + verdict[1:], f"{len(those)} of {len(frames.cases)} cases: {_named(those)}."


def _predicted(frames: Frames) -> Iterator[Point]:
    """Of the cases that a closed form is known for, in how many every byte is the predicted one."""
    agree: dict[int, bool] = {}
    for (case, _), ledger in frames.largest.items():
        known = [each.agrees for numbers in ledger.values() for each in numbers.values() if each.predicted is not None]
        if known:
            agree[case] = agree.get(case, True) and all(known)
    others = frames.cases.loc[[case for case, agrees in agree.items() if not agrees]]
    if agree:
        kept = len(agree) - len(others)
        told = f" Not so: {_named(others)}." if len(others) else ""
        yield (
            "As predicted",
            f"every byte and call that a closed form gives, in {kept} of {len(agree)} cases.{told}",
        )


def _cheapest(frames: Frames) -> Iterator[Point]:
    """The least memory and the shortest step among the right cases of each job."""
    cases = _subjects(frames)
    right = cases[cases["verdict"].isin(PASSED)]
    if right["job"].nunique() > _JOBS:
        yield "Costs", f"{right['job'].nunique()} jobs of different size; the tables compare within each."
        return
    for job in right["job"].unique():
        those = right[right["job"] == job]
        where = f" ({job})" if job else ""
        yield from _least_memory(those, where)
        yield from _fastest(those, where)


def _least_memory(those: pd.DataFrame, where: str) -> Iterator[Point]:
    held = those.dropna(subset=["on_device"]).sort_values("on_device", kind="stable")
    if len(held) > 1:
        least, most = held.iloc[0], held.iloc[-1]
        share = least["on_device"] / (most["on_device"] or 1)
        told = f"{least['label']}, {least['on_device']:,} bytes: {share:.2g} of the most, {most['label']}."
        yield f"Least state on a device{where}", told


def _fastest(those: pd.DataFrame, where: str) -> Iterator[Point]:
    timed = those.dropna(subset=["seconds"]).sort_values("seconds", kind="stable")
    if len(timed) > 1:
        first = timed.iloc[0]
        alike = int((timed["seconds"] <= first["high"]).sum()) - 1
        told = f"; {alike} more below its upper quartile" if alike > 0 else ""
        spread = f" (IQR {scaled(first['spread'], 1e-3)}{told})" if is_known(first["spread"]) else ""
        ratio = f", {number(first['ratio'], '.2f')} x compute-only" if is_known(first["ratio"]) else ""
        yield f"Shortest step{where}", f"{first['label']}, {scaled(first['seconds'], 1e-3)} ms{spread}{ratio}."


def _named(cases: pd.DataFrame) -> str:
    rest = f" and {len(cases) - _NAMED} more" if len(cases) > _NAMED else ""
    return ", ".join(cases["label"][:_NAMED]) + rest
