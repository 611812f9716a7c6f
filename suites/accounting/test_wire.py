"""Wire: the bytes that the meters count cross the kernel's network stack, within the protocol's overhead, and no
others do: an engine sends nothing beside its collectives, through a store or a socket."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

import pytest
import torch.distributed as dist

from zerobench import subjects
from zerobench.driver import run_step, start
from zerobench.judge.command import ReplayCommand
from zerobench.judge.ledger import Entry
from zerobench.meters import TrafficMeter, crossing
from zerobench.model_specs import Gpt, Odd
from zerobench.recording import Traffic
from zerobench.scenario import Scenario
from zerobench.suites.accounting.ledger import demand_at_most, offered
from zerobench.suites.support.trials import Trials

pytestmark = pytest.mark.alone

#: About a million parameters, so that a step moves megabytes in few messages.
LARGE = Gpt(context=16, width=128, layers=5, heads=2)
#: A linear rests in every step, and a block in some; of its 47,000 parameters a tenth is little.
RESTING = Odd(width=64, hidden=(128, 128), unused=True, routed=True, routes="steps")
_SCENARIO = Scenario(model=LARGE, micro_batch=1, prefetch_bucket=0)

#: TCP over IP on loopback adds 66 bytes of headers to a segment, and as much for its acknowledgement. Segments of large
#: messages hold tens of thousands of bytes, and 1,400 even if they are cut for Ethernet: less than a tenth.
_HEADERS = 0.1
#: gloo's own bytes for one collective on one rank: its headers and the acknowledgements of small messages.
_OF_A_CALL = 1024

#: The counter has every process of the machine; the quietest of these steps is the nearest to this test's own bytes.
_STEPS = 12

_NO_COUNTER = "no /proc/net/dev, or no loopback device: the kernel does not count its bytes"


@dataclass(frozen=True)
class _Crossing:
    """One step on one rank: bytes that it received by the meters' count, its calls, and the kernel's count of all.

    gloo reduces whole tensors where only a part is needed: a reduce-scatter sends as much as an all-reduce, twice its
    logical bytes.
    """

    received: int
    calls: int
    twice: int  # of the bytes received, those that gloo sends twice
    wire: int | None


@pytest.mark.ci
@pytest.mark.parametrize("world", [2, 3])
def test_logical_bytes_are_on_the_wire(trials: Trials, world: int) -> None:
    """The kernel sees at least the bytes that the meters count."""
    scenario = _offered(trials, world)
    for step, (received, _, _, wire) in enumerate(_crossings(trials, scenario)):
        entry = Entry("wire", f"{wire} bytes on loopback in step {step}", step=step)
        demand_at_most(trials, scenario, 0, entry, received, wire, "bytes on the wire", "the bytes on the wire")


@pytest.mark.ci
@pytest.mark.parametrize("model", [LARGE, RESTING], ids=["all", "resting"])
@pytest.mark.parametrize("stage", range(4))
def test_the_wire_carries_little_else(trials: Trials, stage: int, model: Gpt | Odd) -> None:
    """The kernel and the file of the store see at most a tenth more than the meters count, and a kilobyte for each
    collective on each rank; also if some parameters receive no gradient, and gradients are clipped."""
    clip = 0.05 if model == RESTING else 0.0
    scenario = offered(trials, _SCENARIO.but(world=2, stage=stage, model=model, clip=clip), "wire")
    crossings = _crossings(trials, scenario)
    received, calls, twice, wire = min(crossings, key=lambda crossing: crossing[3])
    bound = int((received + twice) * (1 + _HEADERS)) + calls * _OF_A_CALL
    seen = f"{wire} bytes on loopback and in the store"
    what = f"{seen} in the quietest of {len(crossings)} steps, {received} of them counted"
    formula = f"1.1 * (counted + {twice} of reduce-scatters) + 1024 * {calls} calls"
    rule = "1.1 of the counted bytes, and a kilobyte for each call"
    demand_at_most(trials, scenario, 0, Entry("wire", what), wire, bound, formula, rule)


def _offered(trials: Trials, world: int) -> Scenario:
    """The Scenario at the first stage that the engine offers."""
    for stage in range(4):
        scenario = _SCENARIO.but(world=world, stage=stage)
        if trials.offers(scenario):
            return scenario
    pytest.skip(f"{trials.name} offers it at no stage")


def _crossings(trials: Trials, scenario: Scenario) -> list[tuple[int, int, int, int]]:
    """Of each step: bytes received, collectives, and bytes that are sent twice, over all ranks; bytes on loopback."""
    by_rank = trials.ask(ReplayCommand(scenario, trials.name), _cross)
    found = []
    for step in zip(*by_rank, strict=True):
        if step[0].wire is None:
            pytest.skip(_NO_COUNTER)
        sums = (sum(getattr(each, name) for each in step) for name in ("received", "calls", "twice"))
        found.append((*sums, step[0].wire))
    return found


def _cross(group: dist.ProcessGroup, subject: str, scenario: Scenario) -> list[_Crossing]:
    """One rank's part: the steps, each metered by itself."""
    rank = dist.get_rank(group)
    found = []
    with closing(start(subjects.load(subject), scenario, group)) as engine:
        for index in range(_STEPS):
            with crossing(group) as crossed, TrafficMeter() as meter:
                run_step(engine, scenario, index, rank)
            totals = meter.traffic.values()
            twice = meter.traffic.get("reduce_scatter", Traffic()).received
            received, calls = sum(t.received for t in totals), sum(t.calls for t in totals)
            found.append(_Crossing(received, calls, twice, crossed.bytes))
    return found
