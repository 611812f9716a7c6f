"""Memory of a rank that no closed form names: tensors within a backward, and memory that is no tensor."""

from __future__ import annotations

from contextlib import closing

import torch.distributed as dist
from torch import nn

from zerobench import subjects
from zerobench.driver import model_for, run_step, start, wrap
from zerobench.meters import TrafficMeter, beside_tensors, live_tensors, resident
from zerobench.scenario import Scenario
from zerobench.subjects.plain import ComputeOnly


def most_in_backward(group: dist.ProcessGroup, subject: str, scenario: Scenario) -> int:
    """One rank's part: the most bytes of living tensors at a collective of the last step's backwards and after each of
    them, beyond those before the step; the model's parameters do not count, because a backward may need them whole.

    Every engine that shards gradients sends while backward runs, so the last collective sees almost all of them made.
    Rank 0 looks; the others answer 0.
    """
    rank, seen, left = dist.get_rank(group), [0], scenario.accumulation
    model = model_for(subjects.load(subject), scenario, rank)
    with closing(wrap(model, subjects.load(subject), scenario, group)) as engine:
        for index in range(scenario.steps - 1):
            run_step(engine, scenario, index, rank)
        shards = list(model.parameters())  # an engine may hold its part beside the whole parameter
        before = _beyond(model, shards, collected=True)

        def look(collective: str) -> None:
            if left and rank == 0:
                seen.append(_beyond(model, shards, collected=False) - before)

        def mark(phase: str) -> None:
            nonlocal left
            look(phase)
            left -= phase == "backward"

        with TrafficMeter(look):
            run_step(engine, scenario, scenario.steps - 1, rank, mark=mark)
    return max(seen)


def _beyond(model: nn.Module, shards: list[nn.Parameter], *, collected: bool) -> int:
    """Bytes of the living tensors that are not parameters of the model, now or when it had the shards."""
    return resident(live_tensors(collected=collected)) - resident([*shards, *model.parameters()])


def beside(group: dist.ProcessGroup, subject: str, scenario: Scenario) -> tuple[int, int] | None:
    """One rank's part: bytes beside tensors that training without an engine adds, and those that the engine adds.

    The first has the memory of torch's libraries, which the second finds in place. None if they cannot be counted.
    """
    added: list[int] = []
    for chosen in (ComputeOnly, subjects.load(subject)):
        before = beside_tensors()
        with closing(start(chosen, scenario, group)) as engine:
            for index in range(scenario.steps):
                run_step(engine, scenario, index, dist.get_rank(group))
            after = beside_tensors()
        if before is None or after is None:
            return None
        added.append(after - before)
    plain, engines = added
    return plain, engines
