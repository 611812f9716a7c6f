"""Subjects alternate in one process: the names, the global hooks and the modes of torch that a subject changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import torch
import torch.distributed as dist
from torch.nn.modules import module
from torch.optim import optimizer
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from zerobench import subjects
from zerobench.driver import Run
from zerobench.model_specs import Gpt
from zerobench.scenario import Scenario
from zerobench.subject import Subject

_SHARED = (torch, torch.nn, torch.nn.functional, torch.nn.Module, torch.nn.Linear, torch.Tensor, torch.autograd, dist)
#: The modules that hold torch's tables of global hooks.
_HOOKED = (module, optimizer)
_SCENARIO = Scenario(model=Gpt(width=16, layers=1, heads=2, context=16), world=4, steps=1)


def scenario_of(subject_type: type[Subject], stage: int) -> Scenario:
    """A step; if the engine offers it, a save, a load into a new engine, and another step."""
    one = _SCENARIO.but(stage=stage)
    resumed = one.but(steps=2, resumes=(1,))
    return one if subject_type.not_offered(resumed) else resumed


def replaced(group: dist.ProcessGroup, name: str, scenario: Scenario) -> list[str]:
    """One rank's part: the things of torch that are others after a run of the subject with an evaluation, or after its
    end."""
    before = _found()
    with closing(Run(subjects.load(name), scenario, group, evaluate=True)) as run:
        while run.step():
            pass
        run.recording()  # evaluates
        now = _found()
    after = _found()
    return [name for name, value in before.items() if not value == now[name] == after[name]]


def _found() -> dict[str, object]:
    names = {f"{space.__name__}.{name}": id(value) for space in _SHARED for name, value in vars(space).items()}
    return names | dict(_hooks()) | dict(_modes())


def _hooks() -> Iterator[tuple[str, object]]:
    """torch's tables of global hooks, and the hooks of autograd that pack the tensors it saves."""
    for space in _HOOKED:
        for name, table in vars(space).items():
            if name.startswith("_global_") and isinstance(table, dict):
                yield f"{space.__name__}.{name}", {key: id(hook) for key, hook in table.items()}
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    yield "torch.autograd.graph.saved_tensors_hooks", [id(each) for each in hooks or ()]


def _modes() -> Iterator[tuple[str, object]]:
    """The modes that see every call of torch."""
    functions = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    yield "torch.overrides.TorchFunctionMode", [id(each) for each in functions]
    yield "torch.utils._python_dispatch.TorchDispatchMode", [id(each) for each in _get_current_dispatch_mode_stack()]
