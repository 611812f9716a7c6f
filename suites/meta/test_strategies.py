"""The strategies draw everything that a Scenario can have."""

from __future__ import annotations

from zerobench.scenario import Odd
from zerobench.suites.support.strategies import PECULIAR


def test_the_model_is_odd() -> None:
    """Every peculiarity that a model can have is drawn."""
    flags = {name for name, value in vars(Odd()).items() if value is False}
    assert flags == set(PECULIAR)
