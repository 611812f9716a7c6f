"""Traffic: the number of each collective's calls and its bytes are those of its closed form."""

from __future__ import annotations

import pytest
from hypothesis import assume

from zerobench.judge.ledger import Entry
from zerobench.recording import Traffic
from zerobench.scenario import Scenario
from zerobench.suites.accounting import grid
from zerobench.suites.accounting.ledger import demand, formula, known, ledgers, skip_unless_offered, theory_of
from zerobench.suites.support.strategies import UNDISTURBED, drawn, scenarios
from zerobench.suites.support.trials import Trials
from zerobench.workload import models


@pytest.mark.rotating
@pytest.mark.parametrize("scenario", grid.TRAFFIC.values(), ids=grid.TRAFFIC)
def test_traffic(counted: Trials, scenario: Scenario) -> None:
    """In each of the first three steps and on every rank, calls and bytes sent and received of every collective are
    those of the closed form."""
    skip_unless_offered(counted, scenario)
    _demand_traffic(counted, scenario)


@drawn(scenarios(**UNDISTURBED))
def test_traffic_whatever_the_scenario(counted: Trials, scenario: Scenario) -> None:
    """For all models and settings, calls and bytes are those of the closed form."""
    assume(counted.offers(scenario))
    _demand_traffic(counted, scenario)


@pytest.mark.rotating
@pytest.mark.parametrize("scenario", grid.TRAFFIC.values(), ids=grid.TRAFFIC)
def test_what_is_sent_is_received(trials: Trials, scenario: Scenario) -> None:
    """Over all ranks together, as many bytes are received as are sent, collective by collective; a broadcast's source
    sends once the bytes that each other rank receives."""
    skip_unless_offered(trials, scenario)
    measured = ledgers(trials, scenario, "traffic")
    for step in range(len(measured[0].traffic)):
        total: dict[str, Traffic] = {}
        for ledger in measured:
            for collective, seen in ledger.traffic[step].items():
                name = "send" if collective == "recv" else collective
                total[name] = total.get(name, Traffic()) + seen
        for collective, seen in total.items():
            copies = scenario.world - 1 if collective == "broadcast" else 1
            entry = Entry("traffic", f"bytes received by {collective} in step {step}, of all ranks", collective, step)
            demand(trials, scenario, 0, entry, seen.received, copies * seen.sent, "bytes sent by all ranks")


def _demand_traffic(trials: Trials, scenario: Scenario) -> None:
    model, theory = models.build(scenario), theory_of(trials)
    measured = ledgers(trials, scenario, "traffic")
    for ledger in measured:
        for step, got in enumerate(ledger.traffic):
            expected = known(trials, theory.traffic(scenario, model, ledger.rank, step), "traffic")
            for collective in sorted({*got, *expected}):
                entry = Entry("traffic", f"{collective} in step {step}", collective, step)
                both = got.get(collective, Traffic()), expected.get(collective, Traffic())
                demand(trials, scenario, ledger.rank, entry, *both, formula(trials, entry))
