"""The plots: one case that is far from all others leaves the others legible."""

from __future__ import annotations

import pandas as pd
import pytest

from zerobench.report.bars import Bars, stacked
from zerobench.report.svg import style
from zerobench.report.trade import trade_off

_LABELS = ["a", "b", "c", "d"]


def _bars(*peaks: float | None) -> Bars:
    return Bars(_LABELS, {"held": [8.0, 7.0, 6.0, 5.0]}, "MiB", {"peak": peaks})


@pytest.mark.parametrize(
    ("peaks", "edge", "numbers"),
    [
        ((10.0, 12.0, 20.0, 11.0), 21.0, []),
        ((10.0, 12.0, 4321.0, 11.0), 12.6, ["4,321 \N{RIGHTWARDS ARROW}"]),
        ((None, None, None, None), 8.4, []),
    ],
)
def test_a_far_mark_is_a_number_at_the_edge(peaks: tuple[float | None, ...], edge: float, numbers: list[str]) -> None:
    """The axis ends behind the others."""
    [axes] = stacked(_bars(*peaks)).axes
    assert axes.get_xlim()[1] == pytest.approx(edge)
    assert [text.get_text() for text in axes.texts] == numbers


def test_nothing_was_sent() -> None:
    """Bars of length 0 have an axis, too."""
    [axes] = stacked(Bars(_LABELS, {"sent": [0.0] * 4}, "MiB")).axes
    assert axes.get_xlim()[1] > 0


@pytest.mark.parametrize(("most", "scale"), [(90.0, "linear"), (4000.0, "log")])
def test_memory_that_is_far_apart_has_a_logarithmic_scale(most: float, scale: str) -> None:
    """Each name is still beside its point."""
    mib = [most, 20.0, 10.0]
    same = {"subject": "x", "stage": 0, "job": "j"}
    points = pd.DataFrame({"mib": mib, "ms": [1.0, 2.0, 3.0], "label": _LABELS[:3], **same})
    with style():
        figure, _ = trade_off(points)
        figure.draw_without_rendering()
    [axes] = figure.axes
    assert axes.get_yscale() == scale
    assert not [label for label in axes.get_yticklabels(which="both") if "$" in label.get_text()]
    heights = [axes.transAxes.inverted().transform(axes.transData.transform((0, each)))[1] for each in mib]
    named = {text.get_text(): text.get_position()[1] for text in axes.texts}
    assert [named[label] for label in _LABELS[:2]] == pytest.approx(heights[:2])
