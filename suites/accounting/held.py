"""Memory of a rank that no closed form names: tensors within a backward, and memory that is no tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

import torch.distributed as dist
from torch import Tensor, nn

from zerobench import subjects
from zerobench.driver import model_for, run_step, start, wrap
from zerobench.meters import LivingTensors, TrafficMeter, beside_tensors, resident
from zerobench.model_specs import Gpt
from zerobench.scenario import Scenario
from zerobench.subject import Subject
from zerobench.subjects.plain import ComputeOnly


def most_in_backward(group: dist.ProcessGroup, subject: str, scenario: Scenario) -> int:
    """One rank's part: the most bytes of living tensors at a collective of the last step's backwards and after each of
    them, beyond those before the step; the model's parameters do not count, because a backward may need them whole.

    Every engine that shards gradients sends while backward runs, so the last collective sees almost all of them made.
    """
    rank, seen, in_backward = dist.get_rank(group), [0], False
    model = model_for(subjects.load(subject), scenario, rank)
    names = _names(model)
    with closing(wrap(model, subjects.load(subject), scenario, group)) as engine:
        for index in range(scenario.steps - 1):
            run_step(engine, scenario, index, rank)
        shards = list(model.parameters())  # an engine may hold its part beside the whole parameter

        def beyond() -> int:
            """Bytes of the living tensors that are not parameters of the model, now or when it had the shards."""
            return resident(living.now()) - resident([*shards, *model.parameters(), *_views(names)])

        def look(collective: str) -> None:
            if in_backward:
                seen.append(beyond() - before)

        def enter(*_: object) -> None:
            nonlocal in_backward
            in_backward = True

        def mark(phase: str) -> None:
            nonlocal in_backward
            look(phase)
            in_backward = False

        model.register_forward_hook(enter)
        with LivingTensors() as living, TrafficMeter(look):
            before = beyond()
            run_step(engine, scenario, scenario.steps - 1, rank, mark=mark)
    return max(seen)


def _names(model: nn.Module) -> dict[nn.Module, list[str]]:
    """The names of each module's own parameters."""
    return {each: [name for name, _ in each.named_parameters(recurse=False)] for each in model.modules()}


def _views(names: Mapping[nn.Module, Sequence[str]]) -> list[Tensor]:
    """The tensors that modules have in the place of their parameters, such as views of a flat one."""
    found = [vars(module).get(name) for module, own in names.items() for name in own]
    return [each for each in found if isinstance(each, Tensor)]


#: An engine's code and its libraries take the same memory with this model as with a large one.
_SMALL = Gpt(vocab=16, context=8, width=8, layers=1, heads=2)


def beside(group: dist.ProcessGroup, subject: str, scenario: Scenario) -> tuple[int, int] | None:
    """One rank's part: bytes beside tensors that the engine adds with a small model, and those that it adds after that.

    Training without an engine comes first. So the second number has neither torch's libraries nor the modules that the
    engine imports when it needs them. None if they cannot be counted.
    """
    engine, small = subjects.load(subject), scenario.but(model=_SMALL)
    found = [_added(group, *each) for each in ((ComputeOnly, scenario), (engine, small), (engine, scenario))]
    _, of_small, of_large = found
    return None if of_small is None or of_large is None else (of_small, of_large)


def _added(group: dist.ProcessGroup, kind: type[Subject], scenario: Scenario) -> int | None:
    before = beside_tensors()
    with closing(start(kind, scenario, group)) as engine:
        for index in range(scenario.steps):
            run_step(engine, scenario, index, dist.get_rank(group))
        after = beside_tensors()
    return None if before is None or after is None else after - before
