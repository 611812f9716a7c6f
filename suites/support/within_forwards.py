"""Calls within a forward: the task of a rank whose client reads states and sets parameters from hooks on its model."""

from __future__ import annotations

from contextlib import closing
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor, nn

from zerobench import subjects
from zerobench.driver import ALL, Keep, flat, model_for, run_step, to_cpu, wrap
from zerobench.recording import Step, Trajectory
from zerobench.scenario import Scenario
from zerobench.subject import Batch, State, Subject
from zerobench.workload.changes import edited

#: The place of the calls: just before a micro-step; in its forward, before the model's first module has run or after
#: its last one; or at the beginning of its backward.
Moment = Literal["before", "first", "last", "backward"]


def train_and_call(
    group: dist.ProcessGroup, name: str, scenario: Scenario, moment: Moment, leaf: int, edits: bool
) -> Trajectory:
    """One rank's part: the client reads all states beside one leaf of the run, after it has set parameters if it
    ``edits``. The recording has what it has read among the reads of the last step."""
    rank, kind = dist.get_rank(group), subjects.load(name)
    model = model_for(kind, scenario, rank)
    with closing(wrap(model, kind, scenario, group)) as subject:
        calls = _Calls(subject, scenario, moment, edits)
        calls.attach(model)
        steps = [_step(calls, scenario, index, rank, leaf) for index in range(scenario.steps)]
    steps[-1].reads |= calls.read
    return Trajectory(name, scenario, rank, steps)


def _step(calls: _Calls, scenario: Scenario, index: int, rank: int, leaf: int) -> Step:
    calls.wait(leaf - index * scenario.accumulation)
    kept: Keep = ALL if index == scenario.steps - 1 else frozenset()
    return run_step(calls.subject, scenario, index, rank, kept)


class _Calls:
    """The calls of the client beside one micro-step; they are made once.

    They are *due* within the micro-step in whose forward or backward they are made, and not before or after it.
    """

    def __init__(self, subject: Subject, scenario: Scenario, moment: Moment, edits: bool) -> None:
        self.subject, self.scenario, self.moment, self.edits = subject, scenario, moment, edits
        self.read: State = {}
        self._due, self._to_come = False, -1

    def wait(self, micro_steps: int) -> None:
        """Make them beside the micro-step that comes after so many; beside none if the number is negative."""
        self._to_come = micro_steps

    def attach(self, model: nn.Module) -> None:
        """Watch the micro-steps of the subject, and the model's forwards."""
        micro_step = self.subject.micro_step

        def watched(batch: Batch) -> Tensor:
            self._to_come, self._due = self._to_come - 1, self._to_come == 0
            self._make("before")
            loss = micro_step(batch)
            assert not self._due, f"the micro-step does not come to its moment {self.moment!r}"
            return loss

        self.subject.micro_step = watched  # type: ignore[method-assign]
        model.register_forward_pre_hook(lambda *_: self._make("first"))
        model.register_forward_hook(lambda module, given, loss: self._end(loss))

    def _end(self, loss: Tensor) -> None:
        self._make("last")
        if loss.requires_grad:
            loss.register_hook(lambda gradient: self._make("backward"))  # type: ignore[no-untyped-call]

    def _make(self, moment: Moment) -> None:
        if not self._due or moment != self.moment:
            return
        self._due = False
        if self.edits:
            self.subject.set_parameters(edited(self.scenario, 0))
        readings: dict[str, Any] = {
            "parameters": self.subject.parameters(),
            "model parameters": self.subject.model_parameters(),
            "optimizer state": flat(self.subject.optimizer_state()),
        }
        for what, values in readings.items():
            self.read |= {f"{what} by a hook, {name}": value for name, value in to_cpu(values).items()}
