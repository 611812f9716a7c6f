"""How the kernels are timed on a GPU, as far as it shows without one: on which buffers, how often, what is let go."""

from __future__ import annotations

import weakref
from itertools import count
from typing import Any
from unittest import mock

import pytest
import torch

from zerobench.suites.bench.kernels import test_kernels, turns, workloads
from zerobench.suites.bench.kernels.workloads import Workload


@pytest.mark.parametrize("moved", [1 << 14, 28 << 20, 448 << 20, 60 << 30])
def test_no_buffer_is_in_the_cache_again(moved: int) -> None:
    """Four times the cache lies between two turns of a set; and no set more."""
    cache = 60 << 20
    found = workloads.sets(moved, cache)
    assert found * moved // 2 >= 4 * cache
    assert found == 1 or (found - 1) * moved // 2 < 4 * cache


@pytest.mark.parametrize("cache", [30, 3000])
def test_buffers_take_turns(cache: int) -> None:
    """The kernel's and each rival's, all of them equally often in a turn."""
    ran: list[tuple[str, int]] = []
    made = count()

    def make(n: int, device: str) -> Workload:
        number = next(made)
        return Workload(lambda: ran.append(("own", number)), 100, {"torch": lambda: ran.append(("torch", number))})

    with mock.patch.object(workloads, "_cache", return_value=cache):
        workload = workloads.out_of_cache(make, 1, "cuda")
    assert workload.sets == 8 * cache // 100 + (cache == 30)
    for work in (workload.work, workload.rivals["torch"]):
        for _ in range(2 * workload.sets):
            work()
    assert ran == [(name, i) for name in ("own", "torch") for i in [*range(workload.sets)] * 2]
    assert turns.at_once(workload) >= workload.sets
    assert turns.at_once(workload) % workload.sets == 0


def test_what_did_not_fit_is_let_go() -> None:
    """Before the next workload is tried: the buffers that the error's frames hold, too."""
    held: list[Any] = []
    left: list[Any] = []

    def kernel(*given: Any) -> None:
        buffer = torch.zeros(1)
        held.append(weakref.ref(buffer))
        raise torch.OutOfMemoryError("tried to allocate 56 GiB")

    with (
        mock.patch("torch.cuda.empty_cache", side_effect=lambda: left.append(held[0]())),
        pytest.raises(pytest.skip.Exception),
    ):
        test_kernels.test_bandwidth(mock.Mock(kernel=kernel), mock.Mock(), "adam_step", 1 << 31, "copy")
    assert left == [None]


def test_a_gpu_measures_every_workload() -> None:
    """A CPU those that say something else there."""
    assert workloads.names("cuda") == list(workloads.WORKLOADS)
    assert 0 < len(workloads.names("cpu")) < len(workloads.WORKLOADS)
