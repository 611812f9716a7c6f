"""Bars: horizontal stacked bars, one for each case, with a mark for a value outside the stack."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from zerobench.report.svg import INK

#: Okabe and Ito's colours, distinct for colour-blind people, without those that fade on white or black.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_GREY = "#8c959f"
_MARKERS = ("d", "|")
_MOST = 40
#: Longer labels are above their bars: beside them they would leave the bars no room, above all on a phone.
_BESIDE = 30
#: Marks beyond this multiple of the median mark are numbers at the edge.
_SQUEEZED = 4.0
#: The only part of a bar if its parts are not known.
NOT_SPLIT = "not split"


@dataclass(frozen=True)
class Bars:
    """For each case its name, a value for each part, a mark or None, and the ends of a whisker through the mark."""

    labels: Sequence[str]
    parts: Mapping[str, Sequence[float]]
    unit: str
    marks: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    whiskers: Sequence[tuple[float, float]] = ()

    def first(self) -> Bars:
        """The first cases, up to the number that can be drawn."""
        return replace(
            self,
            labels=self.labels[:_MOST],
            parts={name: values[:_MOST] for name, values in self.parts.items()},
            marks={name: values[:_MOST] for name, values in self.marks.items()},
            whiskers=self.whiskers[:_MOST],
        )

    def told(self) -> str:
        """The plot in words, for screen readers."""
        cases = (
            f"{label}: {', '.join(f'{name} {values[at]:.4g}' for name, values in self.parts.items() if values[at])}"
            for at, label in enumerate(self.labels)
        )
        return f"In {self.unit}. {'; '.join(cases)}."


def stacked(bars: Bars) -> Figure:
    """The bars, the first case on top."""
    above = max(map(len, bars.labels)) > _BESIDE
    figure = Figure(figsize=(8.6, 0.9 + (0.42 if above else 0.27) * len(bars.labels)), layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(bars.labels))
    start = np.zeros(len(bars.labels))
    for name, colour in zip(bars.parts, itertools.cycle(COLOURS), strict=False):
        values = bars.parts[name]
        axes.barh(
            places,
            values,
            left=start,
            height=0.42 if above else 0.68,
            color=_GREY if name == NOT_SPLIT else colour,
            label=name,
        )
        start = start + np.asarray(values)
    edge = _edge(start.tolist(), bars.marks)
    for marker, (name, marks) in zip(_MARKERS, bars.marks.items(), strict=False):
        known = [(mark, place) for mark, place in zip(marks, places, strict=True) if mark is not None]
        within = [each for each in known if each[0] <= edge]
        axes.plot(*zip(*within, strict=True), linestyle="", marker=marker, markersize=6, color=INK, label=name)
        for mark, place in (each for each in known if each[0] > edge):
            axes.annotate(f"{mark:,.0f} \N{RIGHTWARDS ARROW}", (edge, place), ha="right", va="center", fontsize=8)
    if bars.whiskers:
        low, high = zip(*bars.whiskers, strict=True)
        axes.hlines(places, low, high, color=INK, linewidth=1.2)
    _label(axes, bars.labels, above)
    axes.set_xlim(0, edge or None)
    axes.set_xlabel(bars.unit)
    axes.grid(axis="x", color=INK, alpha=0.15, linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    if axes.get_legend_handles_labels()[1]:  # one rank sends nothing, and has no bars
        figure.legend(loc="outside upper left", ncols=6)
    return figure


def _label(axes: Axes, labels: Sequence[str], above: bool) -> None:
    """The names of the cases, above their bars or beside them."""
    axes.set_yticks(range(len(labels)), [""] * len(labels) if above else labels)
    axes.set_ylim(len(labels) - (0.6 if above else 0.4), -0.8 if above else -0.6)
    for place, label in enumerate(labels if above else ()):
        axes.annotate(label, (0, place - 0.3), xytext=(3, 0), textcoords="offset points", fontsize=8)


def _edge(ends: Sequence[float], marks: Mapping[str, Sequence[float | None]]) -> float:
    """The end of the axis: below marks that are so large that they would compress the rest of the plot."""
    values = [mark for some in marks.values() for mark in some if mark is not None]
    usual = _SQUEEZED * statistics.median(values) if values else math.inf
    return 1.05 * max(each for each in [*ends, *values] if each <= usual)
