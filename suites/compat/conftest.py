"""DeepSpeed's surface is the reference engine's, on CPU ranks; ``--subject`` does not change that."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from zerobench.compat.activation import SITE
from zerobench.ranks import Pool
from zerobench.suites.support.trials import Trials, four_ranks


@pytest.fixture(scope="package", autouse=True)
def stand_in() -> Iterator[None]:
    """Whatever imports the stand-in here, the tests after these in the same process find DeepSpeed itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(sys, "meta_path", list(sys.meta_path))
        patch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        yield
    if SITE in Path(getattr(sys.modules.get("deepspeed"), "__file__", "")).parents:
        for name in [each for each in sys.modules if each.partition(".")[0] == "deepspeed"]:
            del sys.modules[name]


@pytest.fixture(autouse=True)
def one_process() -> Iterator[None]:
    """A test that makes the process of pytest a rank fails itself, in place of the command lines tested after it."""
    before = "RANK" in os.environ or dist.is_initialized()
    yield
    assert before or not ("RANK" in os.environ or dist.is_initialized()), "run initialize() in the pool"


@pytest.fixture(scope="package")
def pool() -> Iterator[Pool]:
    """Four ranks of these tests' own, because a rank that has imported the stand-in never finds DeepSpeed again."""
    with four_ranks() as ranks:
        yield ranks


@pytest.fixture(scope="package")
def reference(pool: Pool) -> Trials:
    """The reference engine on these tests' ranks."""
    return Trials(pool, "reference")
