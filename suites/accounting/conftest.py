"""What the accounting suite asks of an engine before it holds it to a closed form."""

from __future__ import annotations

import pytest

from zerobench.scenario import Scenario
from zerobench.suites.support.trials import Trials
from zerobench.workload import models


@pytest.fixture(scope="session")
def counted(trials: Trials) -> Trials:
    """An engine whose closed forms are known: the reference engine, torch's own, and any that brings a theory."""
    theory, scenario = trials.subject.theory(), Scenario()
    if theory is None or theory.memory(scenario, models.build(scenario)) is None:
        pytest.skip(f"no closed form of {trials.name} is known")
    return trials


@pytest.fixture(scope="session")
def reference(trials: Trials) -> Trials:
    """The reference engine, for properties of no other."""
    if trials.subject.name != "reference":
        pytest.skip("a property of the reference engine")
    return trials
