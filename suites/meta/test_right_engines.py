"""Engines that are right and different pass: a failure is a false alarm."""

from __future__ import annotations

import pytest

from zerobench.ranks import Pool
from zerobench.subject import Subject
from zerobench.suites.meta.mutants.different import DIFFERENT
from zerobench.suites.meta.power.alarms import examine
from zerobench.suites.support import covering


@pytest.mark.slow
@pytest.mark.parametrize("engine", DIFFERENT, ids=lambda engine: engine.__name__)
def test_right_engine_raises_no_alarm(pool: Pool, engine: type[Subject]) -> None:
    """Every property that applies to the engine holds, on one draw of the session's seed."""
    run = examine(pool, engine, covering.SEED, 1)
    assert not run.failure, run.failure
    assert run.scenarios
