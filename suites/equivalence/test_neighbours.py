"""Subjects take turns in one process: each leaves torch to the others as it found it."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch
import torch.distributed as dist

from zerobench import subjects
from zerobench.bench.plan import STAGES_OF_ZERO, plan_cases
from zerobench.driver import run_step, start
from zerobench.ranks import Pool
from zerobench.results.identity import Case
from zerobench.scenario import Gpt, Scenario

_SHARED = (torch, torch.nn, torch.nn.functional, torch.nn.Module, torch.nn.Linear, torch.Tensor, torch.autograd, dist)
_SCENARIO = Scenario(model=Gpt(width=16, layers=1, heads=2, context=16), world=4, steps=1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All known subjects, or the one that ``--subject`` names, at each of their stages."""
    named = metafunc.config.getoption("--subject")
    names = list(subjects.REGISTRY) if named in subjects.REGISTRY else [named]
    cases = plan_cases(_SCENARIO, names, STAGES_OF_ZERO)
    metafunc.parametrize("case", [pytest.param(case, id=case.label) for case in cases])


def _found() -> dict[str, int]:
    return {f"{space.__name__}.{name}": id(value) for space in _SHARED for name, value in vars(space).items()}


def _replaced(group: dist.ProcessGroup, name: str, scenario: Scenario) -> list[str]:
    """What of torch is another object once the subject has trained a step, or once it is closed."""
    load = subjects.load(name)
    before = _found()
    with closing(start(load, scenario, group)) as subject:
        run_step(subject, scenario, 0, dist.get_rank(group))
        now = _found()
    after = _found()
    return [name for name, value in before.items() if not value == now[name] == after[name]]


def test_torch_is_left_as_it_was(pool: Pool, case: Case) -> None:
    if reason := subjects.load(case.subject).unsupported(case.scenario):
        pytest.skip(reason)
    assert pool.run(_replaced, case.subject, case.scenario, world=case.scenario.world) == [[]] * case.scenario.world
