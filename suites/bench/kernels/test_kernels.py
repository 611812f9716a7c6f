"""Kernels: seconds and bandwidth beside a copy of as many bytes, torch and, where it is installed, deepspeed."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from zerobench.results import Json
from zerobench.suites.bench.kernels.workloads import names, rivals, sizes
from zerobench.suites.bench.replaying import CLOCK
from zerobench.suites.bench.runs import Runs


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    quick, device = metafunc.config.getoption("--quick"), metafunc.config.getoption("--device")
    pairs = [(name, n) for name in names(device) for n in sizes(quick, device)]
    found = [(name, n, against) for name, n in pairs for against in rivals(name, device)]
    metafunc.parametrize(("name", "n", "against"), found)


@pytest.mark.benchmark(timer=CLOCK)
def test_bandwidth(runs: Runs, carry: Callable[[Json, list[float]], None], name: str, n: int, against: str) -> None:
    """The kernel and all that it is compared with take turns; what a GPU cannot hold is skipped."""
    try:
        found, seconds = runs.kernel(name, n, against)
    except torch.OutOfMemoryError as error:
        reason = str(error)
    else:
        runs.kernels.append(found)
        carry({"kernel": found}, seconds)
        return
    gc.collect()  # the error is gone, and with it its frames, which held what did fit
    torch.cuda.empty_cache()
    pytest.skip(f"{name} on {n} elements: {reason}")
