"""``deepspeed.runtime.utils``: parts of lists, norms and overflow checks, with the installed DeepSpeed's results."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zerobench.compat.runtime import norms, parts, runtime_functions
from zerobench.compat.runtime.overflow_check import CheckOverflow
from zerobench.suites.compat import loops, oracle
from zerobench.suites.compat.names import runtime_utils


@pytest.fixture(autouse=True)
def _stand_in() -> None:
    loops.deepspeed()


_WEIGHTS = st.lists(st.integers(0, 9).map(float) | st.floats(0, 100, allow_subnormal=False), min_size=1, max_size=12)


@oracle.NEEDS_DEEPSPEED
@given(weights=_WEIGHTS, number=st.integers(1, 6))
def test_parts(weights: list[float], number: int) -> None:
    """The bounds of DeepSpeed's parts, also among ways that are equally good."""
    assert runtime_utils.bounds(weights, number) == oracle.ask(runtime_utils.bounds, weights, number)


_NUMBERS = st.floats(-1e3, 1e3, width=32, allow_subnormal=False) | st.sampled_from([0.0, float("inf"), float("nan")])
_ROWS = st.lists(st.lists(_NUMBERS, min_size=1, max_size=7), min_size=1, max_size=4)


@oracle.NEEDS_DEEPSPEED
@settings(max_examples=60)
@given(rows=_ROWS, norm_type=st.sampled_from([2, 1, 3.0, float("inf")]))
def test_norms(rows: list[list[float]], norm_type: float) -> None:
    """Every digit of a norm is DeepSpeed's, and so is every answer of CheckOverflow."""
    assert runtime_utils.norms(rows, norm_type) == oracle.ask(runtime_utils.norms, rows, norm_type)


def test_balanced_parts() -> None:
    """Four layers of which one is as heavy as the others together."""
    assert parts.partition_balanced([1, 1, 1, 3], 2) == [0, 3, 4]
    assert parts.partition_balanced([5, 1], 3) == [0, 1, 2, 2]


def test_gradient_norms() -> None:
    """Parameters without a gradient do not count, nor do masked ranges; -1 stands for a norm that is not finite."""
    one, other, third = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
    one.grad, other.grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    assert norms.get_flattened_grad_norm([one, other, third]) == 5.0
    assert norms.get_flattened_grad_norm([one, other], grad_norm_mask=[[[0, 1]], []]) == 4.0
    assert norms.get_grad_zeros([one, other, third]) == 2.0
    other.grad[0] = float("nan")
    assert norms.get_flattened_grad_norm([one, other]) == -1


def test_overflow() -> None:
    """An infinite gradient, in groups that are given at first or later."""
    good, bad = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    good.grad, bad.grad = torch.ones(2), torch.tensor([1.0, float("inf")])
    assert not CheckOverflow([[good]]).check()
    assert CheckOverflow([[good], [bad]]).check()
    assert CheckOverflow().check([[bad]])
    with pytest.raises(ValueError, match="give param_groups here or to CheckOverflow"):
        CheckOverflow().check()


def test_named_tuples_are_moved() -> None:
    """They become plain tuples, as in DeepSpeed."""
    found = runtime_functions.copy_to_device(torch.ones(2, 2).max(0), "meta", torch.is_tensor)
    assert type(found) is tuple
    assert all(each.is_meta for each in found)
