"""Trade: memory against time, a panel for each job; no case beats the frontier in both."""

from __future__ import annotations

import itertools
import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from zerobench.report.bars import COLOURS
from zerobench.report.svg import INK

_PANELS = 6
_FAR = 10.0  # ratio of the most to the least memory; from here on the scale is logarithmic
_LABELLED = 12  # if a panel has more points, only those of the frontier have a label


def trade_off(points: pd.DataFrame) -> tuple[Figure, list[str]]:
    """The drawing, and the labels of the cases on a frontier; ``points`` has ms, mib, subject, stage, label and job."""
    jobs = [(str(job), points[points["job"] == job]) for job in points["job"].unique()[:_PANELS]]
    figure = Figure(figsize=(8.6, 0.4 + 3.2 * len(jobs)), layout="constrained")
    colours = dict(zip(points["subject"].unique(), itertools.cycle(COLOURS), strict=False))
    named = []
    for at, (job, those) in enumerate(jobs):
        axes = figure.add_subplot(len(jobs), 1, at + 1)
        axes.set_title(job)
        best = frontier(those)
        _panel(axes, those, best, colours)
        named += list(best["label"])
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=6)
    return figure, named


def frontier(points: pd.DataFrame) -> pd.DataFrame:
    """The points not dominated in ms and mib (another is better in one and as good in the other), by rising time."""
    ordered = points.sort_values(["ms", "mib"])
    return ordered[ordered["mib"] < ordered["mib"].cummin().shift(fill_value=math.inf)]


def _panel(axes: Axes, points: pd.DataFrame, best: pd.DataFrame, colours: dict[str, str]) -> None:
    axes.plot(best["ms"], best["mib"], drawstyle="steps-post", color=INK, linewidth=1.2, alpha=0.6, label="frontier")
    for subject, colour in colours.items():
        those = points[points["subject"] == subject]
        axes.plot(those["ms"], those["mib"], linestyle="", marker="o", markersize=7, color=colour, label=subject)
    axes.set_xlabel("ms of a step (less is better)")
    axes.set_ylabel("MiB at peak (less is better)")
    axes.grid(color=INK, alpha=0.15, linewidth=0.8)
    if points["mib"].max() > _FAR * points["mib"].min() > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.margins(0.05, 0.15)
    axes.autoscale_view()  # now: the positions of names depend on the points
    _name(axes, points if len(points) <= _LABELLED else best.iloc[:_LABELLED])


def _name(axes: Axes, points: pd.DataFrame) -> None:
    """A label for each point at the right edge, at the point's height if there is room, and a line to it."""
    room = 0.95 / _LABELLED
    at = 1.0
    for left, (_, point) in enumerate(points.sort_values("mib", ascending=False).iterrows()):
        own = axes.transAxes.inverted().transform(axes.transData.transform((point["ms"], point["mib"])))[1]
        at = max(min(at, own), room * (len(points) - 1 - left))
        axes.annotate(
            str(point["label"]),
            (point["ms"], point["mib"]),
            xytext=(1.02, at),
            textcoords="axes fraction",
            verticalalignment="center",
            fontsize=8,
            arrowprops={
                "arrowstyle": "-",
                "color": INK,
                "alpha": 0.3,
                "linewidth": 0.7,
                "shrinkA": 0,
                "shrinkB": 4,
                "relpos": (0, 0.5),
            },
        )
        at -= room
