"""The accounting sets a known finding of costs aside, other properties do not, and a run says what it judged."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from zerobench import findings
from zerobench.errors import Disagreement
from zerobench.findings import KnownFinding
from zerobench.judge.ledger import Entry, LedgerDifference
from zerobench.ranks import Pool
from zerobench.scenario import Scenario
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.suites.accounting.ledger import judge
from zerobench.suites.support import judged
from zerobench.suites.support.offered import obstacle
from zerobench.suites.support.trials import Trials

pytestmark = pytest.mark.ci

_SCENARIO = Scenario(accumulation=2)
_FINDING = KnownFinding(
    slug="ddp/growth",
    distribution="torch",
    versions=">=1",
    subjects=("torch-ddp",),
    kind="wrong",
    explanation="grows",
    upstream="",
    where=[{"accumulation": [2]}],
    scenario=_SCENARIO,
    costs=("growth",),
)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding is the only one of all engines."""
    monkeypatch.setattr(findings, "everything", lambda: [_FINDING])
    judged.restart()


@pytest.mark.usefixtures("known")
def test_a_finding_of_costs_is_one_of_its_cost_alone() -> None:
    """Training and other costs go on; a finding of training stops all of them."""
    assert obstacle(TorchDdp, _SCENARIO) is None
    assert obstacle(TorchDdp, _SCENARIO, "received") is None
    assert obstacle(TorchDdp, _SCENARIO, "growth") is _FINDING


def test_a_finding_of_training_is_one_of_every_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cost of wrong training says nothing."""
    finding = replace(_FINDING, costs=())
    monkeypatch.setattr(findings, "everything", lambda: [finding])
    assert obstacle(TorchDdp, _SCENARIO, "growth") is finding


def _cost_named(name: str, seen: list[Scenario]) -> Any:
    def cost(trials: Trials, scenario: Scenario) -> None:
        seen.append(scenario)
        if scenario.accumulation > 1:
            entry = Entry("growth", "bytes")
            raise Disagreement("too large", LedgerDifference("torch-ddp", scenario, 0, entry, 2, 1, "too large"))

    cost.__name__ = name
    return cost


@pytest.mark.usefixtures("known")
def test_the_nearest_scenario_is_judged(pool: Pool) -> None:
    """The Scenario of the finding is set aside, and named; another cost is judged in it, and fails."""
    trials, seen = Trials(pool, "torch-ddp"), list[Scenario]()
    judge(trials, _SCENARIO, _cost_named("growth", seen))
    assert seen == [_SCENARIO.but(accumulation=1)]
    assert judged.current.set_aside == {"ddp/growth"}
    with pytest.raises(Disagreement, match="too large"):
        judge(trials, _SCENARIO, _cost_named("received", seen))


@pytest.mark.usefixtures("known")
def test_a_fixed_field_stays(pool: Pool) -> None:
    """If only a fixed field leads past the finding, the test skips with it."""
    with pytest.raises(pytest.skip.Exception, match="the known finding ddp/growth"):
        judge(Trials(pool, "torch-ddp"), _SCENARIO, _cost_named("growth", []), "accumulation")


def _reported(name: str, outcome: str, *, skipped: str = "") -> Any:
    record = (judged.PROPERTY, judged.current.exported())
    judged.restart()
    where = ("test_x.py", 1, f"Skipped: {skipped}") if skipped else None
    return SimpleNamespace(nodeid=f"test_x.py::{name}", outcome=outcome, user_properties=[record], longrepr=where)


def test_a_run_says_what_it_judged() -> None:
    """Scenarios add up over a test's arguments, the largest share counts, and a test without a rule has its reason."""
    judged.restart()
    judged.current.note(Scenario(stage=1), "half of a shard", 0.75)
    judged.current.note(Scenario(stage=1), "half of a shard", 0.25)
    judged.current.set_aside.add("ddp/growth")
    reports = [_reported("test_memory[1]", "passed")]
    judged.current.note(Scenario(stage=2), "half of a shard", 0.5)
    reports.append(_reported("test_memory[2]", "failed"))
    reports.append(_reported("test_files", "skipped", skipped="no files"))
    terminal: Any = SimpleNamespace(getreports=lambda outcome: [r for r in reports if r.outcome == outcome])
    assert list(judged.summary(terminal)) == [
        "judged memory: 2 Scenarios, at most 75% of half of a shard",
        "set aside in memory: Scenarios of the known finding ddp/growth",
        "not judged files: no files",
    ]
