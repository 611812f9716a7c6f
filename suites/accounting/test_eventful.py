"""A call has its bounds in any setting, and a step costs the same whatever came before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume

from zerobench.model_specs import Gpt
from zerobench.scenario import Read, Readable, Scenario
from zerobench.suites.accounting import call_costs, costs, eventful
from zerobench.suites.accounting.ledger import offers
from zerobench.suites.support.covering import among
from zerobench.suites.support.strategies import UNDISTURBED, USUAL_STEPS, drawn_at_each_stage, scenarios
from zerobench.suites.support.trials import Trials

#: Of its blocks ten are less than a third.
DEEP = Gpt(vocab=64, context=16, width=32, layers=32, heads=2)
#: Of its blocks one is a tenth of the model.
_OF_EIGHT = replace(DEEP, layers=8)
_LAST = 4
_PLAIN: dict[str, Any] = {
    **UNDISTURBED,
    **USUAL_STEPS,
    "micro_batch": 1,
    "ragged": False,
    "ranks_differ": False,
    "zeroed": (),
    "max_live": 0,  # it keeps units whole from one call to the next on purpose
}
_FIXED: dict[str, Any] = _PLAIN | {
    "model": _OF_EIGHT,
    "steps": _LAST + 1,
    "chunk": 32,
    "forwards": among("eventful forwards", "one", "two", "dropped", "no_grad"),
}
#: Buckets of a block, and nothing gathered ahead or kept.
OF_A_BLOCK: dict[str, Any] = {
    "reduce_bucket": 13_000,
    "allgather_bucket": 13_000,
    "prefetch_bucket": 0,
    "persistence": 0,
    "buffer_size": 16_384,
}
#: Each process whose reads and writes can be counted is alone.
_ALONE = among("alone", False, True)


@st.composite
def _any_setting(draw: st.DrawFn, /, **fixed: Any) -> Scenario:
    """Trainings with any setting that leaves the bounds of calls as they are."""
    scenario = draw(scenarios(**_PLAIN | {"model": DEEP, "steps": 3, "chunk": 256} | fixed)).but(**OF_A_BLOCK)
    return scenario.but(world=1) if draw(_ALONE) else scenario


@st.composite
def _eventful(draw: st.DrawFn, /, **fixed: Any) -> Scenario:
    """Trainings with events of several kinds before the last step, and with one in it or none."""
    scenario = draw(scenarios(**_FIXED | fixed))
    scenario = _with(draw, scenario, draw(_KINDS), st.integers(1, _LAST - 1))
    for kind in draw(st.lists(_KINDS, max_size=3)):
        scenario = _with(draw, scenario, kind, st.integers(1, _LAST - 1))
    last = draw(among("event in the last step", "none", *_IN_THE_LAST))
    scenario = scenario if last == "none" else _with(draw, scenario, last, st.just(_LAST))
    if draw(among("eventful load", False, True)):
        loads = {
            "resumes": (draw(st.integers(1, _LAST - 2)),),  # a new engine settles in its first step
            "loads_into": draw(among("eventful into", "new", "trained", "same")),
            "loads": draw(among("eventful part", "all", "without_optimizer", "model")),
        }
        scenario = scenario.but(**loads)
    return scenario


@st.composite
def _lessened(draw: st.DrawFn, /, **fixed: Any) -> Scenario:
    """Trainings of which the last step alone has an event, by which it does less; half of them on one rank, which has
    its states in files."""
    kind = draw(among("less in the last step", "rest", "short step", "overflow"))
    several = {"accumulation": draw(st.sampled_from([2, 3, 4]))} if kind == "short step" else {}
    scenario = draw(scenarios(**_FIXED | several | fixed))
    if draw(_ALONE):
        scenario = scenario.but(world=1, offload_optimizer="nvme" if scenario.stage else "none")
    return _with(draw, scenario, kind, st.just(_LAST))


def _with(draw: st.DrawFn, scenario: Scenario, kind: str, steps: st.SearchStrategy[int]) -> Scenario:
    """The Scenario with one event more."""
    field, event = _EVENTS[kind](draw, scenario, draw(steps))
    return scenario.but(**{field: tuple(dict.fromkeys((*getattr(scenario, field), event)))})


_READ: list[Readable] = ["parameters", "model_parameters", "optimizer_state", "gradients"]


def _reading(draw: st.DrawFn, scenario: Scenario, step: int) -> tuple[str, Read]:
    what = draw(st.sampled_from(_READ))
    at = scenario.accumulation if what == "gradients" else draw(st.integers(-1, scenario.accumulation))
    return "reads", Read(what, step, at, draw(st.sampled_from([1, 2])))


_EVENTS: dict[str, Callable[[st.DrawFn, Scenario, int], tuple[str, Any]]] = {
    "evaluation": lambda draw, scenario, step: (
        "reads",
        Read("evaluation", step, draw(st.integers(-1, scenario.accumulation))),
    ),
    "reading": _reading,
    "edit": lambda draw, scenario, step: ("edits", step),
    "edit of gradients": lambda draw, scenario, step: ("gradient_edits", step),
    "rest": lambda draw, scenario, step: ("frozen_steps", step),
    "short step": lambda draw, scenario, step: ("short_steps", (step, 1)),
    "overflow": lambda draw, scenario, step: ("poison", (step, draw(st.integers(0, scenario.world - 1)))),
}
_KINDS = st.sampled_from(sorted(_EVENTS))
_IN_THE_LAST = sorted(_EVENTS)


@pytest.mark.ci
@drawn_at_each_stage(lambda stage: _any_setting(stage=stage), share=0.15, of_others=0.3)
def test_a_call_has_its_bounds_in_any_setting(trials: Trials, scenario: Scenario) -> None:
    """Evaluations, readings, edits, a save, a load and updates add little memory, and receive what the rank lacks, in
    any precision, with any offload, optimizer and accumulation; if the rank is alone, they read and write files once.
    After the last step a process has no more tensors and descriptors than after the first."""
    if not trials.subject.promises_bits:
        pytest.skip("a rule of engines that promise the contract's bits")
    assume(offers(trials, scenario, call_costs.each_call))
    call_costs.each_call(trials, scenario)


@pytest.mark.ci
@drawn_at_each_stage(lambda stage: _any_setting(stage=stage), share=0.1, of_others=0.2)
def test_little_is_undeclared_in_any_setting(trials: Trials, scenario: Scenario) -> None:
    """In any precision, with any optimizer, clipping, offload and accumulation, the living tensors that the engine does
    not declare take less than half a shard, and as many bytes of tensors are alive after eight steps as after three."""
    assume(offers(trials, scenario, costs.undeclared) and offers(trials, scenario, costs.growth))
    costs.undeclared(trials, scenario)
    costs.growth(trials, scenario)


@pytest.mark.ci
@drawn_at_each_stage(lambda stage: _eventful(stage=stage), share=0.15, of_others=0.3)
def test_a_step_costs_the_same_whatever_came_before(trials: Trials, scenario: Scenario) -> None:
    """After evaluations, readings, edits, short and skipped steps, steps in which a block rests and loads, a step, with
    an event of its own or without, has the traffic, the resident bytes and the files that it has without the events
    before it; it needs the memory of one block more at most, and keeps no more tensors and descriptors."""
    if not trials.subject.promises_bits:
        pytest.skip("a rule of engines that promise the contract's bits")
    assume(offers(trials, scenario, eventful.after_events))
    eventful.after_events(trials, scenario)


@pytest.mark.ci
@drawn_at_each_stage(lambda stage: _lessened(stage=stage), share=0.1, of_others=0.2)
def test_a_step_that_does_less_costs_no_more(trials: Trials, scenario: Scenario) -> None:
    """A short or skipped step, or one in which a part of the model rests, receives no more than a whole step; if the
    rank is alone, it reads and writes no more, either."""
    if not trials.subject.promises_bits:
        pytest.skip("a rule of engines that promise the contract's bits")
    assume(offers(trials, scenario, eventful.lesser_step))
    eventful.lesser_step(trials, scenario)
