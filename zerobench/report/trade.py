"""Trade: memory against time, a panel for each job, with the frontier that no case beats in both."""

from __future__ import annotations

import itertools
import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from zerobench.report.bars import COLOURS
from zerobench.report.svg import INK

_PANELS = 6
_LABELLED = 12  # in a panel with more points only those of the frontier have a label


def trade_off(points: pd.DataFrame) -> tuple[Figure, list[str]]:
    """The drawing, and the labels of the cases on a frontier; ``points`` has ms, mib, subject, stage, label and job."""
    jobs = list(itertools.islice(points.groupby("job", sort=False), _PANELS))
    columns = 2 if len(jobs) > 1 else 1
    rows = math.ceil(len(jobs) / columns)
    figure = Figure(figsize=(8.6, 0.4 + 3.4 * rows), layout="constrained")
    colours = dict(zip(points["subject"].unique(), itertools.cycle(COLOURS)))
    named = []
    for at, (job, those) in enumerate(jobs):
        axes = figure.add_subplot(rows, columns, at + 1)
        axes.set_title(str(job))
        best = frontier(those)
        _panel(axes, those, best, colours)
        named += list(best["label"])
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=6)
    return figure, named


def frontier(points: pd.DataFrame) -> pd.DataFrame:
    """The points that no other is better than in one of ms and mib and as good as in the other, by rising time."""
    ordered = points.sort_values(["ms", "mib"])
    return ordered[ordered["mib"] < ordered["mib"].cummin().shift(fill_value=math.inf)]


def _panel(axes: Axes, points: pd.DataFrame, best: pd.DataFrame, colours: dict[str, str]) -> None:
    axes.plot(best["ms"], best["mib"], drawstyle="steps-post", color=INK, linewidth=1.2, alpha=0.6, label="frontier")
    for subject, colour in colours.items():
        those = points[points["subject"] == subject]
        axes.plot(those["ms"], those["mib"], linestyle="", marker="o", markersize=7, color=colour, label=subject)
    for _, point in (points if len(points) <= _LABELLED else best).iterrows():
        axes.annotate(_short(point), (point["ms"], point["mib"]), textcoords="offset points", xytext=(6, 4), fontsize=8)
    axes.set_xlabel("ms of a step (less is better)")
    axes.set_ylabel("MiB at peak (less is better)")
    axes.grid(color=INK, alpha=0.15, linewidth=0.8)
    axes.margins(0.12, 0.15)


def _short(point: pd.Series) -> str:
    """The label without the subject, which the colour tells, and without what the panel has in common."""
    label, subject = str(point["label"]), str(point["subject"])
    return label.removeprefix(subject).removesuffix(f", {point['job']}" if point["job"] else "").lstrip(" ,") or subject
