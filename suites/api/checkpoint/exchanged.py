"""The two halves of an exchange with DeepSpeed, as tasks of ranks: an engine trains and saves, another one loads."""

from __future__ import annotations

import importlib.util
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from zerobench import subjects
from zerobench.driver import flat, model_for, run_step, start, to_cpu, wrap
from zerobench.model_specs import Odd
from zerobench.recording import State
from zerobench.scenario import LossScale, Scenario
from zerobench.subject import Subject
from zerobench.subjects.deepspeed_universal import convert_to_universal

NEEDS_DEEPSPEED = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="DeepSpeed is not installed; pip install 'zerobench[deepspeed]'",
)
LIMIT = 300.0
MODEL = Odd(hidden=(7, 3, 5), frozen=True, tied=True, tiny=True, high=True, buffers=True)
#: Sizes such that a rank's part ends within a parameter, and a loss scale that changes.
SCENARIO = Scenario(
    model=MODEL,
    steps=3,
    loss_scale=LossScale(initial_power=4, window=1),
    sub_group=40,
)


def states(subject: Subject, scenario: Scenario) -> State:
    """Everything that the subjects' calls can read of the training state: at stages 1 and 2 DeepSpeed cannot read the
    optimizer state of a second group (reports/findings/deepspeed/second-group-state)."""
    optimizer = not scenario.optimizer.second_group
    named = {"master": subject.parameters(), "model": subject.model_parameters()}
    found = {f"{what} {name}": value for what, state in named.items() for name, value in state.items()}
    return to_cpu(found | (flat(subject.optimizer_state()) if optimizer else {}))


def loss_scale(subject: Any) -> float:
    """The loss scale of the next step."""
    return float(subject.engine.loss_scale if subject.name == "reference" else subject._loss_scale())


def train_and_save(group: dist.ProcessGroup, name: str, scenario: Scenario, directory: Path) -> State:
    """Train, save, and return the states."""
    with closing(start(subjects.load(name), scenario, group)) as subject:
        for index in range(scenario.steps):
            run_step(subject, scenario, index, dist.get_rank(group))
        subject.save(directory)
        return states(subject, scenario) | {"loss scale": torch.tensor(loss_scale(subject))}


def load(
    group: dist.ProcessGroup, name: str, scenario: Scenario, directory: Path, steps: int = 0, save: Path | None = None
) -> tuple[State, Any]:
    """Load into an engine with other values, train, maybe save, and return the states and the counters."""
    kind = subjects.load(name)
    with closing(wrap(model_for(kind, scenario.but(seed=1), dist.get_rank(group)), kind, scenario, group)) as subject:
        subject.load(directory)
        for index in range(scenario.steps, scenario.steps + steps):
            run_step(subject, scenario, index, dist.get_rank(group))
        if save is not None:
            subject.save(save)
        engine: Any = subject.engine  # type: ignore[attr-defined]
        if hasattr(engine.optimizer, "_lazy_init_hp_params_optimizer_state"):
            engine.optimizer._lazy_init_hp_params_optimizer_state()  # else DeepSpeed can read no state before a step
        scale = {"loss scale": torch.tensor(loss_scale(subject))}
        return states(subject, scenario) | scale, (engine.global_steps, engine.skipped_steps)


def demand_equal(got: State, expected: State) -> None:
    assert got.keys() == expected.keys()
    differing = [name for name, value in expected.items() if not value.equal(got[name])]
    assert not differing, {name: (got[name], expected[name]) for name in differing[:2]}


def to_universal(group: dist.ProcessGroup, directory: Path) -> None:
    """Convert the latest checkpoint, in one process."""
    convert_to_universal(directory, (directory / "latest").read_text(encoding="utf-8"))
