"""Memory of a rank within a forward, beside that of a training without an engine."""

from __future__ import annotations

from contextlib import closing

import torch.distributed as dist

from zerobench import subjects
from zerobench.driver import draw_batches, model_for, wrap
from zerobench.judge.command import ReplayCommand
from zerobench.judge.ledger import Entry
from zerobench.meters import PeakMeter
from zerobench.scenario import Scenario
from zerobench.subject import Subject
from zerobench.subjects.plain import ComputeOnly
from zerobench.suites.accounting import bounds
from zerobench.suites.accounting.ledger import demand_at_most
from zerobench.suites.support.trials import Trials
from zerobench.workload import models


def forward(trials: Trials, scenario: Scenario) -> None:
    """The memory that the forward of each micro-step adds; in the first step if the engine promises bits: others make
    buffers there."""
    first = 0 if trials.subject.promises_bits else scenario.accumulation
    room = bounds.of_ten_blocks(models.shapes(scenario)) + gathered(trials, scenario)
    for rank, found in enumerate(trials.ask(ReplayCommand(scenario, trials.name), most_in_forwards)):
        plain = max(without for without, _ in found)
        for number, (_, size) in list(enumerate(found))[first:]:
            entry = Entry("within", f"{size} bytes that the allocator adds within forward {number}", "forward")
            demand_at_most(trials, scenario, rank, entry, size, plain + room, "as without an engine, and ten blocks")


def gathered(trials: Trials, scenario: Scenario) -> int:
    """Bytes of parameters that a forward may gather beside few blocks: at stage 2 an engine that does not promise bits,
    such as FSDP, may shard them between steps, and have all of them whole until the backward has used them."""
    model = models.shapes(scenario)
    return bounds.fp32(scenario, model) if scenario.stage == 2 and not trials.subject.promises_bits else 0


def most_in_forwards(group: dist.ProcessGroup, name: str, scenario: Scenario) -> list[tuple[int, int]]:
    """One rank's part: the most bytes that the allocator adds from the beginning of each micro-step to the end of the
    model's forward, without an engine and with it."""
    without, found = (_most(group, kind, scenario) for kind in (ComputeOnly, subjects.load(name)))
    return list(zip(without, found, strict=True))


def _most(group: dist.ProcessGroup, kind: type[Subject], scenario: Scenario) -> list[int]:
    rank = dist.get_rank(group)
    with PeakMeter() as peak:
        model = model_for(kind, scenario, rank)
        model.register_forward_hook(lambda *_: peak.restart())
        with closing(wrap(model, kind, scenario, group)) as engine:
            for step in range(scenario.steps):
                for batch in draw_batches(scenario, step, rank):
                    peak.restart()
                    engine.micro_step(batch)
                engine.step()
    return peak.added[::2]
