"""Published tables: the ZeRO paper's numbers follow from its formulas by rules of rounding that are written here."""

from __future__ import annotations

import pytest

from zerobench.suites.theory.published import (
    ANOMALIES,
    Anomaly,
    Cell,
    figure_1,
    in_print,
    table_1,
    table_2,
)


@pytest.mark.parametrize("cell", [*figure_1(), *table_1(), *table_2()], ids=lambda cell: cell.where)
def test_cell(cell: Cell) -> None:
    """Every cell of figure 1 and of tables 1 and 2 is the formula's number, rounded by the rule of its block."""
    assert cell.rounded == cell.printed, f"{cell.where}: the formula gives {float(cell.formula)}"


@pytest.mark.parametrize("anomaly", ANOMALIES, ids=lambda anomaly: anomaly.where)
def test_anomaly(anomaly: Anomaly) -> None:
    """A printed number that its formula does not give is what the verdict says instead."""
    _, _, decimals = anomaly.printed.partition(".")
    assert in_print(anomaly.formula, len(decimals)) != anomaly.printed, "no anomaly: the formula gives it"
    assert anomaly.explained == anomaly.printed, anomaly.verdict
