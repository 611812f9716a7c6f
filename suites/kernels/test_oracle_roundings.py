"""The canonical trainer's update has the same bits for each element, wherever in a tensor it is."""

from __future__ import annotations

import pytest
import torch

from zerobench.oracles.optimizer import ExactUpdate


@pytest.mark.parametrize("weight", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("end", [-0.0, 0.0, 1.0])
@pytest.mark.parametrize("start", [1.0, -1.0, 0.0, -0.0])
def test_the_sign_of_a_zero_depends_on_no_position(start: float, end: float, weight: float) -> None:
    """torch's vector code and its code for a tensor's last elements differ in the sign of a zero average."""
    found = set()
    for elements in (1, 3, 8, 13, 16, 67):
        average = torch.full((elements,), start)
        with ExactUpdate():
            average.lerp_(torch.full((elements,), end), weight)
        found |= {str(value) for value in average.tolist()}
    assert len(found) == 1
