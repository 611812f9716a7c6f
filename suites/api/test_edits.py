"""Edits inside GatheredParameters stay, in every Scenario."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
import torch.distributed as dist
from torch import nn

import zerobench
from zerobench import subjects
from zerobench.driver import run_step, start
from zerobench.judge.command import ReplayCommand
from zerobench.judge.judgement import across_ranks
from zerobench.recording import State, Step, Trajectory
from zerobench.scenario import Scenario
from zerobench.subjects.reference import Reference
from zerobench.suites.support.covering import among
from zerobench.suites.support.rerun import error_of_test
from zerobench.suites.support.sizes import ALL
from zerobench.suites.support.strategies import drawn, scenarios
from zerobench.suites.support.trials import TIME_LIMIT, Trials
from zerobench.workload.data import held_out

#: An edit can be lost where parameters are sharded, and it shows if the unit does not stay whole afterwards.
_SCENARIOS = scenarios(
    steps=1,
    stage=st.sampled_from([3, 3, 3, 0, 1, 2]),
    max_live=st.sampled_from([0, ALL]),
    persistence=st.sampled_from([0, 0, 30, ALL]),
)


_MODIFIERS = st.sampled_from([None, 0, 1])


#: Whether the edited parameter is one of the frozen ones, if there are any, and its number among them.
_CHOICES = st.tuples(among("edits a frozen one", False, True), st.integers(0, 63))


@drawn(st.tuples(_SCENARIOS, _MODIFIERS, _CHOICES, st.booleans()), share=0.5)
def test_edits_persist(reference: Trials, scenario: tuple[Scenario, int | None, tuple[bool, int], bool]) -> None:
    """A value written inside GatheredParameters, in place or as new data, is there afterwards, on every rank, in
    parameter and, if it trains, master; reading alone moves no master."""
    one, modifier, which, replaces = scenario
    modifier = None if modifier is None else modifier % one.world
    for pairs in reference.ask(ReplayCommand(one, reference.name), _edit, modifier, which, replaces):
        for got, expected in pairs:
            found = across_ranks([got], [expected], ("parameters", "model_parameters"))
            if found is not None:
                raise error_of_test(found, one, reference.name)


def _edit(
    group: dist.ProcessGroup,
    name: str,
    scenario: Scenario,
    modifier: int | None,
    which: tuple[bool, int],
    replaces: bool,
) -> list[tuple[Trajectory, Trajectory]]:
    """One rank's part: the masters after a reading, and the written parameter and master, each beside the right
    values."""
    subject, rank = start(subjects.load(name), scenario, group), dist.get_rank(group)
    assert isinstance(subject, Reference)
    run_step(subject, scenario, 0, rank)
    before = subject.parameters()
    with zerobench.GatheredParameters(subject.model):
        pass
    read = subject.parameters()
    chosen, edited = _chosen(subject, *which)
    with zerobench.GatheredParameters([edited], modifier_rank=modifier):
        if replaces and modifier in (None, rank):
            edited.data = torch.full_like(edited.data, 0.5)
        elif modifier in (None, rank):
            edited.data.fill_(0.5)
    subject.evaluate(held_out(scenario))
    master = zerobench.safe_get_full_fp32_param(edited)
    assert (master is not None) == (chosen in subject.trained)
    with zerobench.GatheredParameters([edited]):
        seen = edited.detach().clone()
    subject.close()

    def recorded(parameters: State, model_parameters: State) -> Trajectory:
        step = Step([], None, False, 1.0, parameters=parameters, model_parameters=model_parameters)
        return Trajectory(name, scenario, rank, [step])

    masters = {} if master is None else {chosen: master}
    got = recorded(masters, {chosen: seen})
    written = recorded(
        {name: torch.full_like(each, 0.5) for name, each in masters.items()}, {chosen: torch.full_like(seen, 0.5)}
    )
    return [(recorded(read, {}), recorded(before, {})), (got, written)]


def _chosen(subject: Reference, frozen: bool, which: int) -> tuple[str, nn.Parameter]:
    """A trained parameter and its name; a frozen one if the model has any and ``frozen`` is set."""
    rest = {name: p for name, p in subject.model.named_parameters() if name not in subject.trained}
    found = rest if frozen and rest else subject.trained
    return list(found.items())[which % len(found)]


#: Calls that give parameters new values.
_CALLS = ("step", "set", "load")


@pytest.mark.parametrize("part", [False, True], ids=["model", "weight"])
@pytest.mark.parametrize("stage", [2, 3])
def test_calls_within_the_context(reference: Trials, stage: int, part: bool, tmp_path: Path) -> None:
    """A step, a value that is set, and a load within the context have their values there, and keep them after it."""
    for ours in reference.pool.run(_calls_within, stage, part, tmp_path, world=2, timeout=TIME_LIMIT):
        assert ours == {(call, when): True for call in _CALLS for when in ("within", "after")}


def _calls_within(group: dist.ProcessGroup, stage: int, part: bool, folder: Path) -> dict[tuple[str, str], bool]:
    """One rank's part: whether each call's values are those of an engine that makes the calls in no context."""
    (model, engine), (like, other) = _engine(group, stage), _engine(group, stage)
    engine.save_checkpoint(folder)
    same = {}
    for call in _CALLS:
        _backward(engine)
        with zerobench.GatheredParameters([next(model.parameters())] if part else model):
            _call(call, engine, folder)
            within = next(model.parameters()).detach().clone()
        _backward(other)
        _call(call, other, folder)
        with zerobench.GatheredParameters(like):
            same[call, "within"] = torch.equal(within, next(like.parameters()))
        masters = [[zerobench.safe_get_full_fp32_param(p) for p in each.parameters()] for each in (model, like)]
        same[call, "after"] = all(torch.equal(one, two) for one, two in zip(*masters, strict=True))
    for each in (engine, other):
        each.destroy()
    return same


def _engine(group: dist.ProcessGroup, stage: int) -> tuple[nn.Module, zerobench.Engine]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    small = {"stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 0}
    config = {
        "train_batch_size": dist.get_world_size(group),
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": stage, **small},
    }
    engine, *_ = zerobench.initialize(model, config, process_group=group)
    return model, engine


def _backward(engine: zerobench.Engine) -> None:
    engine.backward(engine(torch.ones(3, 8)).square().mean())


def _call(name: str, engine: zerobench.Engine, folder: Path) -> None:
    engine.step()
    if name == "set":
        weight = next(engine.module.parameters())
        zerobench.safe_set_full_fp32_param(weight, torch.full((8, 8), 0.25))
    if name == "load":
        engine.load_checkpoint(folder)
