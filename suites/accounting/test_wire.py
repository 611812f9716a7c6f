"""Wire: the bytes that the meters count cross the kernel's network stack, within the protocol's overhead, and no
others do: an engine sends nothing beside its collectives, through a store, a socket or a file."""

from __future__ import annotations

import pytest

from zerobench.judge.ledger import Entry
from zerobench.model_specs import Gpt, Odd
from zerobench.scenario import Scenario
from zerobench.suites.accounting.ledger import demand_at_most, judge
from zerobench.suites.accounting.network import crossings, wire
from zerobench.suites.support.trials import Trials

pytestmark = pytest.mark.alone

#: About a million parameters, so that a step moves megabytes in few messages.
LARGE = Gpt(context=16, width=128, layers=5, heads=2)
#: A linear rests in every step, and a block in some; of its 47,000 parameters a tenth is little.
RESTING = Odd(width=64, hidden=(128, 128), unused=True, routed=True, routes="steps")
_SCENARIO = Scenario(model=LARGE, micro_batch=1, prefetch_bucket=0)


@pytest.mark.ci
@pytest.mark.parametrize("world", [2, 3])
def test_logical_bytes_are_on_the_wire(trials: Trials, world: int) -> None:
    """The kernel sees at least the bytes that the meters count."""
    scenario = _offered(trials, world)
    for step, found in enumerate(crossings(trials, scenario)):
        entry = Entry("wire", f"{found.wire} bytes on loopback in step {step}", step=step)
        demand_at_most(
            trials, scenario, 0, entry, found.received, found.wire, "bytes on the wire", "the bytes on the wire"
        )


@pytest.mark.ci
@pytest.mark.parametrize("model", [LARGE, RESTING], ids=["all", "resting"])
@pytest.mark.parametrize("stage", range(4))
def test_the_wire_carries_little_else(trials: Trials, stage: int, model: Gpt | Odd) -> None:
    """The kernel sees at most a tenth more, on loopback and in the file of the store, and in all that ranks write,
    than the meters count, and a kilobyte for each collective on each rank; also if some parameters receive no gradient,
    and gradients are clipped."""
    clip = 0.05 if model == RESTING else 0.0
    judge(trials, _SCENARIO.but(world=2, stage=stage, model=model, clip=clip), wire)


def _offered(trials: Trials, world: int) -> Scenario:
    """The Scenario at the first stage that the engine offers."""
    for stage in range(4):
        scenario = _SCENARIO.but(world=world, stage=stage)
        if trials.offers(scenario):
            return scenario
    pytest.skip(f"{trials.name} offers it at no stage")
