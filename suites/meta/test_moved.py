"""The accounting of an engine that promises no bits: work may move from one call to another, and does not grow."""

from __future__ import annotations

import inspect
from functools import partial
from types import ModuleType

import pytest

from zerobench import findings
from zerobench.model_specs import Gpt
from zerobench.ranks import Pool
from zerobench.recording import Traffic
from zerobench.scenario import LossScale, Scenario
from zerobench.suites.accounting import costs, grid, histories, network
from zerobench.suites.accounting.forms import Form
from zerobench.suites.accounting.ledger import Cost
from zerobench.suites.meta.demand import demand_caught
from zerobench.suites.meta.mutants import moved
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.power.catching import failure_of
from zerobench.suites.support.trials import Trials

pytestmark = pytest.mark.ci

_SCENARIO = Scenario(model=grid.DEEP, stage=1, chunk=32)
_SKIPPING = _SCENARIO.but(dtype="fp16", loss_scale=LossScale(static=1.0), poison=((1, 0),))
_LONG = _SKIPPING.but(steps=12, poison=((10, 0),))

_RIGHT: list[tuple[type[Mutant], Cost, Scenario]] = [
    (moved.RightIfItAgreesOnce, histories.after_evaluation, _SCENARIO),
    (moved.RightIfItCatchesUp, histories.after_skip, _SKIPPING),
]
_WRONG: list[tuple[type[Mutant], Cost, Scenario]] = [
    (moved.AgreesAgainAfterAnEvaluation, histories.after_evaluation, _SCENARIO),
    (moved.AgreesInPartAfterAnEvaluation, histories.after_evaluation, _SCENARIO),
    (moved.AgreesAgainAfterASave, histories.after_saving, _SCENARIO),
    (moved.AgreesAgainAfterAnEvaluation, histories.long_run, _LONG),
    (moved.CatchesUpTwice, histories.after_skip, _SKIPPING),
]


def _ids(cases: list[tuple[type[Mutant], Cost, Scenario]]) -> list[str]:
    return [f"{engine.__name__}-{cost.__name__}" for engine, cost, _ in cases]


@pytest.mark.parametrize(("engine", "cost", "scenario"), _RIGHT, ids=_ids(_RIGHT))
def test_work_may_move(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, engine: type[Mutant], cost: Cost, scenario: Scenario
) -> None:
    """An engine that promises no bits may do it earlier or later; one that promises them may not."""
    trials = Trials.of(pool, engine)
    cost(trials, scenario)
    monkeypatch.setattr(trials.subject, "promises_bits", True)
    assert failure_of(partial(cost, trials, scenario))


@pytest.mark.parametrize(("engine", "cost", "scenario"), _WRONG, ids=_ids(_WRONG))
def test_more_or_less_work_is_caught(pool: Pool, engine: type[Mutant], cost: Cost, scenario: Scenario) -> None:
    """A step that costs more than without the call, or saves more than the call has cost, is a fault."""
    trials = Trials.of(pool, engine)
    demand_caught(trials, engine, failure_of(partial(cost, trials, scenario)), replayed=False)


def test_a_form_has_all_costs_between_two() -> None:
    """Of each collective and each number by itself."""
    form = Form("", {"broadcast": Traffic(1, 0, 8)}, {"broadcast": Traffic(3, 0, 8), "all_reduce": Traffic(1, 4, 4)})
    assert form.nearest("broadcast", Traffic(2, 0, 8)) == Traffic(2, 0, 8)
    assert form.nearest("broadcast", Traffic(4, 5, 6)) == Traffic(3, 0, 8)
    assert form.nearest("broadcast", Traffic(0, 0, 8)) == Traffic(1, 0, 8)
    assert form.nearest("all_reduce", Traffic()) == Traffic()
    assert form.nearest("all_gather", Traffic(1, 1, 1)) == Traffic()


@pytest.mark.parametrize("module", [costs, histories, network], ids=lambda each: each.__name__)
def test_every_cost_has_its_name(module: ModuleType) -> None:
    """A known finding can name each function that judges a Scenario."""
    found = [each for each in vars(module).values() if _is_cost(each) and each.__module__ == module.__name__]
    assert found
    assert all(costs.COSTS[each.__name__] is each for each in found)


def _is_cost(each: object) -> bool:
    """Whether it is a public function of Trials and a Scenario that returns nothing."""
    if not inspect.isfunction(each) or each.__name__.startswith("_"):
        return False
    signature = inspect.signature(each)
    return [*signature.parameters] == ["trials", "scenario"] and signature.return_annotation == "None"


def test_a_known_finding_names_costs() -> None:
    """No finding is of a cost that no test judges."""
    assert {cost for each in findings.everything() for cost in each.costs} <= {*costs.COSTS}


def test_an_engine_shards_with_its_setting(pool: Pool) -> None:
    """The bound of a shard is that of the setting with which the engine documents that it shards."""
    scenario = Scenario(model=Gpt(vocab=64, context=16, width=64, layers=2, heads=2), world=4, stage=2, chunk=64)
    costs.sharded(Trials.of(pool, moved.ShardsWithASetting), scenario)
    trials = Trials.of(pool, moved.ShardsNot)
    demand_caught(trials, moved.ShardsNot, failure_of(partial(costs.sharded, trials, scenario)), replayed=False)
