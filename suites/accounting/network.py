"""Wire: the bytes on the kernel's loopback device, beside those that the meters count; for the cost of this name."""

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
from zerobench.recording import Traffic
from zerobench.scenario import Scenario
from zerobench.suites.accounting.ledger import demand_at_most
from zerobench.suites.support.trials import Trials

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
    logical bytes. A reduce is a reduce-scatter and a gather: of n ranks it sends at most n times what its root has to
    receive.
    """

    received: int
    calls: int
    again: int  # the bytes that gloo sends beside them
    wire: int | None


def wire(trials: Trials, scenario: Scenario) -> None:
    """The bytes that the kernel and the file of the store see beside the counted ones."""
    found = crossings(trials, scenario)
    received, calls, again, seen = min(found, key=lambda each: each[3])
    bound = int((received + again) * (1 + _HEADERS)) + calls * _OF_A_CALL
    what = f"{seen} bytes on loopback and in the store"
    what = f"{what} in the quietest of {len(found)} steps, {received} of them counted"
    formula = f"1.1 * (counted + {again} of reduce-scatters and reduces) + 1024 * {calls} calls"
    rule = "1.1 of the counted bytes, and a kilobyte for each call"
    demand_at_most(trials, scenario, 0, Entry("wire", what), seen, bound, formula, rule)


def crossings(trials: Trials, scenario: Scenario) -> list[tuple[int, int, int, int]]:
    """Of each step: bytes received, collectives, and bytes that gloo adds, over all ranks; bytes on loopback."""
    by_rank = trials.ask(ReplayCommand(scenario, trials.name), _cross)
    found = []
    for step in zip(*by_rank, strict=True):
        if step[0].wire is None:
            pytest.skip(_NO_COUNTER)
        sums = (sum(getattr(each, name) for each in step) for name in ("received", "calls", "again"))
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
            scattered, reduced = (meter.traffic.get(name, Traffic()).received for name in ("reduce_scatter", "reduce"))
            again = scattered + (scenario.world - 1) * reduced
            received, calls = sum(t.received for t in totals), sum(t.calls for t in totals)
            found.append(_Crossing(received, calls, again, crossed.bytes))
    return found
