"""Traffic: the number of each collective's calls and its bytes are those of its closed form."""

from __future__ import annotations

import pytest
from hypothesis import assume

from zerobench.scenario import Scenario
from zerobench.suites.accounting import costs, grid
from zerobench.suites.accounting.ledger import judge, offers
from zerobench.suites.support.strategies import UNDISTURBED, USUAL_STEPS, drawn_at_each_stage, scenarios
from zerobench.suites.support.trials import Trials


@pytest.mark.ci
@pytest.mark.parametrize("scenario", grid.TRAFFIC.values(), ids=grid.TRAFFIC)
def test_traffic(counted: Trials, scenario: Scenario) -> None:
    """In each of the first three steps and on every rank, calls and bytes sent and received of every collective are
    those of the closed form."""
    judge(counted, scenario, costs.traffic)


@drawn_at_each_stage(lambda stage: scenarios(stage=stage, **UNDISTURBED, **USUAL_STEPS), share=0.2, of_others=0.6)
def test_traffic_whatever_the_scenario(counted: Trials, scenario: Scenario) -> None:
    """For all models and settings, calls and bytes are those of the closed form."""
    assume(offers(counted, scenario, costs.traffic))
    costs.traffic(counted, scenario)


@pytest.mark.ci
@pytest.mark.parametrize("scenario", grid.TRAFFIC.values(), ids=grid.TRAFFIC)
def test_what_is_sent_is_received(trials: Trials, scenario: Scenario) -> None:
    """Over all ranks together, as many bytes are received as are sent, collective by collective; a broadcast's source
    sends once the bytes that each other rank receives, and a reduce's root receives once those that each other rank
    sends."""
    judge(trials, scenario, costs.received)
