"""Wire: the bytes that the kernel sees, beside those that the meters count; for the cost of this name."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import pytest
import torch.distributed as dist

from zerobench import subjects
from zerobench.driver import run_step, start
from zerobench.judge.command import ReplayCommand
from zerobench.judge.ledger import Entry
from zerobench.meters import TrafficMeter, crossing, shared
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

_NO_COUNTER = "no /proc/net/dev or /proc/self/io, or no loopback device: the kernel does not count its bytes"


@dataclass(frozen=True)
class _Crossing:
    """One step: bytes received by the meters' count, and calls; bytes on loopback, and written by the processes, by
    the kernel's count; the most bytes at a collective in memory that processes may share; of one rank, or of all.

    gloo reduces whole tensors where only a part is needed: a reduce-scatter sends as much as an all-reduce, twice its
    logical bytes. A reduce is a reduce-scatter and a gather: of n ranks it sends at most n times what its root has to
    receive.
    """

    received: int
    calls: int
    again: int  # the bytes that gloo sends beside them
    wire: int
    written: int
    shared: int = 0

    @classmethod
    def of_all(cls, ranks: Sequence[_Crossing]) -> _Crossing:
        """The sums over all ranks; each of them reads loopback's only counter."""
        sums = {name: sum(getattr(each, name) for each in ranks) for name in vars(ranks[0])}
        return cls(**sums | {"wire": ranks[0].wire})


def wire(trials: Trials, scenario: Scenario) -> None:
    """The bytes on loopback and in the store's file beside the counted ones; those that the processes write, through
    sockets and to files of their own; and those in memory and files that they map and may share."""
    found = crossings(trials, scenario)
    _demand_little(trials, scenario, "on loopback and in the store", [(each, each.wire) for each in found])
    _demand_little(trials, scenario, "that the ranks write", [(each, each.written) for each in found])
    mapped = [(each, each.received + each.again + each.shared) for each in found[-1:]]
    _demand_little(trials, scenario, "in collectives, and in maps that ranks may share,", mapped)


def _demand_little(trials: Trials, scenario: Scenario, where: str, found: list[tuple[_Crossing, int]]) -> None:
    step, seen = min(found, key=lambda each: each[1])
    bound = int((step.received + step.again) * (1 + _HEADERS)) + step.calls * _OF_A_CALL
    what = f"{seen} bytes {where} in the quietest of {len(found)} step(s), {step.received} of them counted"
    formula = f"1.1 * (counted + {step.again} of reduce-scatters and reduces) + 1024 * {step.calls} calls"
    rule = "1.1 of the counted bytes, and a kilobyte for each call"
    demand_at_most(trials, scenario, 0, Entry("wire", what), seen, bound, formula, rule)


def crossings(trials: Trials, scenario: Scenario) -> list[_Crossing]:
    """Each step, of all ranks."""
    by_rank = trials.ask(ReplayCommand(scenario, trials.name), _cross)
    steps = [[each for each in step if each is not None] for step in zip(*by_rank, strict=True)]
    if not all(len(step) == scenario.world for step in steps):
        pytest.skip(_NO_COUNTER)
    return [_Crossing.of_all(step) for step in steps]


def _cross(group: dist.ProcessGroup, subject: str, scenario: Scenario) -> list[_Crossing | None]:
    """One rank's part: the steps, each metered by itself. Ranks that exchange values in memory wait for each other by
    a collective, so the last step is looked at in each of them."""
    rank, before, maps = dist.get_rank(group), shared(), [0]
    found: list[_Crossing | None] = []
    with closing(start(subjects.load(subject), scenario, group)) as engine:
        for index in range(_STEPS):
            look = (lambda _: maps.append(shared() - before)) if index == _STEPS - 1 else None
            with crossing(group) as crossed, TrafficMeter(look) as meter:
                run_step(engine, scenario, index, rank)
            totals = meter.traffic.values()
            scattered, reduced = (meter.traffic.get(name, Traffic()).received for name in ("reduce_scatter", "reduce"))
            again = scattered + (scenario.world - 1) * reduced
            received, calls = sum(t.received for t in totals), sum(t.calls for t in totals)
            wire, written = crossed.bytes, crossed.written
            known = None
            if wire is not None and written is not None:
                known = _Crossing(received, calls, again, wire, written, max(maps))
            found.append(known)
    return found
