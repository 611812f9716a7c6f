"""Plots: what tables cannot show at a glance: what is stacked on what, and what is traded for what.

All numbers are those of the frames, on the rank that the tables show. If there are many cases the first are drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from zerobench.report.bars import NOT_SPLIT, Bars, stacked
from zerobench.report.frame import OFF, SPLIT, STATES, TOTAL, Frames
from zerobench.report.svg import markup, style
from zerobench.report.table import is_known
from zerobench.report.tables import MEMORY, TIME, TRAFFIC
from zerobench.report.trade import trade_off
from zerobench.results.identity import COMPUTE_ONLY
from zerobench.verdict import PASSED

_MIB = 2**20


@dataclass(frozen=True)
class Plot:
    """A drawing, its title, and the title of the table under which it stands."""

    table: str
    title: str
    caption: str
    svg: str


def draw(frames: Frames) -> list[Plot]:
    """All plots that there are numbers for."""
    with style():
        return [*_memory(frames), *_traffic(frames), *_time(frames), *_trade_off(frames)]


def _memory(frames: Frames) -> Iterator[Plot]:
    held = {case: frames.ledger(case, "memory") for case in frames.cases.index}
    cases = [case for case, ledger in held.items() if ledger.keys() >= set(STATES)]
    if cases:
        present = [*STATES, *(medium for medium in OFF if any(medium in held[case] for case in cases))]
        parts = {
            name: [held[case][name]["bytes"].measured / _MIB if name in held[case] else 0.0 for case in cases]
            for name in present
        }
        marks = {"peak within a step": _mib(frames, "peak", cases)}
        bars = Bars(_labels(frames, cases), parts, "MiB on the fullest rank", marks)
        yield _plot("memory", MEMORY, "State held between steps, stacked, and the peak within a step.", bars)


def _traffic(frames: Frames) -> Iterator[Plot]:
    moved = {case: frames.ledger(case, "traffic") for case in frames.cases.index}
    cases = [case for case, ledger in moved.items() if ledger]
    if cases:
        names = sorted({name for case in cases for name in moved[case]} - {TOTAL})
        sent = {
            name: [moved[case][name]["sent"].measured / _MIB if name in moved[case] else 0.0 for case in cases]
            for name in names
        }
        sent = {name: values for name, values in sent.items() if any(values)} or sent  # who receives sends nothing
        bars = Bars(_labels(frames, cases), sent, "MiB sent in a step, each collective on the rank that sends most")
        yield _plot("traffic", TRAFFIC, "Bytes sent in a step, by collective.", bars)


def _time(frames: Frames) -> Iterator[Plot]:
    timed = frames.cases[frames.cases["seconds"].notna()]
    if len(timed):
        split = timed["forward"].notna()
        parts = {name: [1e3 * value if is_known(value) else 0.0 for value in timed[name]] for name in SPLIT}
        whole = [0.0 if known else 1e3 * value for known, value in zip(split, timed["seconds"], strict=True)]
        parts = {name: values for name, values in {**parts, NOT_SPLIT: whole}.items() if any(values)}
        median = {"median step": [1e3 * value for value in timed["seconds"]]}
        ends = [(1e3 * low, 1e3 * high) for low, high in zip(timed["low"], timed["high"], strict=True)]
        bars = Bars(list(timed["label"]), parts, "ms", median, ends)
        yield _plot("time", TIME, "A step's parts, and its median with the quartiles.", bars)


def _trade_off(frames: Frames) -> Iterator[Plot]:
    """Memory against time among the right cases; its frontier is those that no other beats in both."""
    cases = frames.cases[frames.cases["verdict"].isin(PASSED) & (frames.cases["subject"] != COMPUTE_ONLY)]
    points = cases.assign(
        ms=1e3 * cases["seconds"].astype(float),
        mib=cases["peak"].astype(float) / _MIB,
    ).dropna(subset=["ms", "mib"])
    if len(points) > 1:
        figure, frontier = trade_off(points)
        caption = "Peak memory against the time of a step; the line is the frontier: no other case is better in both."
        text = f"{caption} On it: {'; '.join(frontier)}."
        title = "Memory against time"
        yield Plot(TIME, title, caption, markup(figure, "trade", title, text))


def _plot(name: str, table: str, caption: str, bars: Bars) -> Plot:
    shown = bars.first()
    if len(shown.labels) < len(bars.labels):
        caption = f"{caption} The first {len(shown.labels)} of {len(bars.labels)} cases; the table has all."
    return Plot(table, table, caption, markup(stacked(shown), name, table, f"{caption} {shown.told()}"))


def _mib(frames: Frames, column: str, cases: Sequence[int]) -> list[float | None]:
    return [None if pd.isna(value) else value / _MIB for value in frames.cases[column][list(cases)]]


def _labels(frames: Frames, cases: Sequence[int]) -> list[str]:
    return [str(frames.cases["label"][case]) for case in cases]
