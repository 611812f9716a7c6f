"""Facts of a Scenario that follow from several of its fields; a predicate of a known finding names them as fields."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from zerobench.model_specs import Odd
from zerobench.scenario import Read, Scenario

#: A gradient of 4 times 2 to this power overflows fp16.
_HIGH = 14


def resumed_unstepped(scenario: Scenario) -> bool:
    """Whether a new engine loads a saved state after skipped steps only, before the first update."""
    return any(
        _may_overflow_at_first(scenario) or scenario.bad_steps.issuperset(range(resume)) for resume in scenario.resumes
    )


def _may_overflow_at_first(scenario: Scenario) -> bool:
    """Whether a dynamic loss scale begins so high that the first steps may overflow in some elements."""
    return scenario.scales_dynamically and scenario.loss_scale.initial_power >= _HIGH


def resumed_before_gradient(scenario: Scenario) -> bool:
    """Whether a new engine loads a state from before a block's first update: the first block's, which was frozen or
    stopped in all steps so far, or the routed block's. A load before any update is :func:`resumed_unstepped`."""
    return any(_may_overflow_at_first(scenario) or _before_gradient(scenario, resume) for resume in scenario.resumes)


def _before_gradient(scenario: Scenario, resume: int) -> bool:
    model, applied = scenario.model, _applied(scenario, resume)
    if not applied or not isinstance(model, Odd):
        return bool(applied) and set(scenario.frozen_steps).issuperset(applied)
    routed = [step for step in applied if _is_routed(scenario, step)]
    first = routed if _is_stopped(model) else applied
    return set(scenario.frozen_steps).issuperset(first) or (model.routed and not routed)


def resumed_without_momentum(scenario: Scenario) -> bool:
    """Whether a new engine loads a state from before a parameter group's first update with a momentum, which a schedule
    has set to zero until then."""
    return any(
        _without_momentum(scenario, resume, group)
        for resume in scenario.resumes
        for group in _groups_with_a_schedule(scenario)
    )


def strays_without_momentum(scenario: Scenario) -> bool:
    """Whether an engine loads a state of a group with momentum, and has trained one step, in which the group's momentum
    was zero."""
    return scenario.loads_into == "trained" and any(
        not _momentum_in(scenario, [resume], group) and not _without_momentum(scenario, resume, group)
        for resume in scenario.resumes
        for group in _groups_with_a_schedule(scenario)
    )


def _groups_with_a_schedule(scenario: Scenario) -> range:
    """The parameter groups, if a schedule sets their momentum; else none."""
    groups = 1 + scenario.optimizer.second_group + scenario.optimizer.third_group
    return range(groups if "momentum" in scenario.schedules else 0)


def _without_momentum(scenario: Scenario, resume: int, group: int) -> bool:
    applied = _applied(scenario, resume)
    return bool(applied) and not _momentum_in(scenario, applied, group)


def _momentum_in(scenario: Scenario, steps: Iterable[int], group: int) -> bool:
    """Whether a group has a momentum in one of these steps."""
    return any(scenario.factors(step, group)["momentum"] for step in steps)


def momentum_in_part(scenario: Scenario) -> bool:
    """Whether after some update only some parameter groups have had a momentum in this optimizer, as a schedule has set
    that of the others to zero until then."""
    groups = _groups_with_a_schedule(scenario)
    stops = range(1, scenario.steps + 1)
    return any(len({_had_momentum(scenario, stop, group) for group in groups}) > 1 for stop in stops)


def thaws_without_momentum(scenario: Scenario) -> bool:
    """Whether a block trains that was frozen in each update so far in which a schedule left its group a momentum."""
    frozen = set(scenario.frozen_steps)
    groups = _groups_with_a_schedule(scenario)
    return any(
        step not in frozen and any(_only(frozen, _with_momentum(scenario, step + 1, group)) for group in groups)
        for step in range(scenario.steps)
    )


def _with_momentum(scenario: Scenario, stop: int, group: int) -> list[int]:
    """The updates before ``stop`` in which a group has a momentum."""
    return [step for step in _applied(scenario, stop) if _momentum_in(scenario, [step], group)]


def _had_momentum(scenario: Scenario, stop: int, group: int) -> bool:
    """Whether a group has had a momentum before ``stop``, since its optimizer began."""
    starts = [0, *(each for each in scenario.resumes if each < stop and _begins_anew(scenario))]
    return _momentum_in(scenario, (step for step in _applied(scenario, stop) if step >= max(starts)), group)


def _applied(scenario: Scenario, stop: int) -> list[int]:
    """The steps before ``stop`` that were not skipped."""
    return [step for step in range(stop) if step not in scenario.bad_steps]


def _is_stopped(model: Odd) -> bool:
    """Whether the first block gets gradients on the leaves of the route alone: its output is detached on the others."""
    return model.stopped and not model.calls_twice


def _is_routed(scenario: Scenario, step: int) -> bool:
    """Whether a leaf of the step uses the routed block."""
    return any(scenario.route(step, leaf) for leaf in range(scenario.leaves_of(step)))


def trained_in_part(scenario: Scenario) -> bool:
    """Whether an engine loads that has trained one step, in which the routed or the stopped block had no gradient."""
    model = scenario.model
    if scenario.loads_into != "trained" or not isinstance(model, Odd):
        return False
    return (model.routed or _is_stopped(model)) and not all(_is_routed(scenario, resume) for resume in scenario.resumes)


def loads_frozen(scenario: Scenario) -> bool:
    """Whether an engine that has trained loads while the first block is frozen."""
    return scenario.loads_into != "new" and any(resume in scenario.frozen_steps for resume in scenario.resumes)


def begins_frozen(scenario: Scenario) -> bool:
    """Whether the first block is frozen in the first forward of an engine."""
    new = scenario.resumes if scenario.loads_into != "same" else ()
    return any(first in scenario.frozen_steps for first in (0, *new))


def evaluates_first(scenario: Scenario) -> bool:
    """Whether the first forward of an engine is an evaluation."""
    new = scenario.resumes if scenario.loads_into == "new" else ()
    reads = (read for read in scenario.reads if read.what == "evaluation")
    return any(read.at == 0 and read.step in (0, *new) for read in reads)


def reads_thawed(scenario: Scenario) -> bool:
    """Whether the optimizer's states are read while a block trains that was frozen in each update so far: between its
    first forward and its update, or after a step that is skipped."""
    frozen = set(scenario.frozen_steps)
    reads = {read.step for read in scenario.reads if read.what == "optimizer_state" and read.at >= 0}
    return any(
        step in reads | scenario.bad_steps and step not in frozen and _only(frozen, _applied(scenario, step))
        for step in range(scenario.steps)
    )


def _only(steps: set[int], applied: list[int]) -> bool:
    """Whether there were updates, and none in another step than these."""
    return bool(applied) and steps.issuperset(applied)


def raises_scale(scenario: Scenario) -> bool:
    """Whether a dynamic loss scale may grow: its window of good steps comes in a row, for DeepSpeed one more."""
    bad = [-1, *sorted(scenario.bad_steps), scenario.steps]
    good = max(after - before - 1 for before, after in itertools.pairwise(bad))
    spec = scenario.loss_scale
    return scenario.scales_dynamically and good >= spec.window + (spec.scaler == "deepspeed")


def rests_after_use(scenario: Scenario) -> bool:
    """Whether a step is applied of which no leaf uses the routed block, or the stopped one, and an earlier step has."""
    model = scenario.model
    if not isinstance(model, Odd) or not (model.routed or _is_stopped(model)):
        return False
    used = [_is_routed(scenario, step) for step in range(scenario.steps)]
    return any(not now and any(used[:step]) and step not in scenario.bad_steps for step, now in enumerate(used))


def late_first_gradient(scenario: Scenario) -> bool:
    """Whether a block's first gradient in an optimizer comes after an update of the other parameters: the routed
    block's, or the first block's, which was stopped or frozen until then."""
    model, frozen = scenario.model, set(scenario.frozen_steps)
    if not isinstance(model, Odd) or not model.by_route:
        return _comes_late(scenario, frozen)
    rests = {step for step in range(scenario.steps) if not _is_routed(scenario, step)}
    first = frozen | rests if _is_stopped(model) else frozen
    return _comes_late(scenario, first) or (model.routed and _comes_late(scenario, rests))


def late_first_call(scenario: Scenario) -> bool:
    """The same if the steps count that a GradScaler leaves out: a fused optimizer is called in them."""
    return _has_grad_scaler(scenario) and late_first_gradient(scenario.but(poison=()))


def late_thaw(scenario: Scenario) -> bool:
    """A late first gradient of a block that was frozen until then."""
    return _comes_late(scenario, set(scenario.frozen_steps))


def _begins_anew(scenario: Scenario) -> bool:
    """Whether an engine that loads has an optimizer without states."""
    return scenario.loads_part and scenario.loads_into == "new"


def _comes_late(scenario: Scenario, rests: set[int]) -> bool:
    """Whether a block that has no gradient in the steps ``rests`` is late in an optimizer's life."""
    updated = late = False
    for step in range(scenario.steps):
        if step in scenario.resumes and _begins_anew(scenario):
            updated = late = False
        if step in scenario.bad_steps:
            continue
        if late and step not in rests:
            return True
        late = (late or not updated) and step in rests
        updated = True
    return False


def skips_before_update(scenario: Scenario) -> bool:
    """Whether a step is skipped in an optimizer without states."""
    if _may_overflow_at_first(scenario):
        return True
    for step in scenario.bad_steps:
        starts = [0, *(each for each in scenario.resumes if each <= step and _begins_anew(scenario))]
        if scenario.bad_steps.issuperset(range(max(starts), step)):
            return True
    return False


def reduces_in_another_dtype(scenario: Scenario) -> bool:
    """Whether gradients are reduced in another dtype than that of the parameters."""
    return scenario.communication_dtype not in (None, scenario.dtype)


def empties_a_shard(scenario: Scenario) -> bool:
    """Whether a rank's shard of some parameter has no element, if the ranks share its rows evenly."""
    rows = scenario.model.rows if isinstance(scenario.model, Odd) else set()
    shards = scenario.world // scenario.replicate
    return shards > 1 and any(-(-each // shards) * (shards - 1) >= each for each in rows)


def empties_a_partition(scenario: Scenario) -> bool:
    """Whether a rank has no parameter of the second or the third group, if the ranks share the elements of each evenly,
    by twos."""
    optimizer, model = scenario.optimizer, scenario.model
    if not isinstance(model, Odd):
        return False
    head = model.width if model.tied else model.width * (model.width + 1)
    vectors = model.width + sum(inner + model.width * (3 if model.norm else 1) for inner in model.hidden)
    sizes = [head] * optimizer.third_group + [vectors] * optimizer.second_group
    return any(size <= -(-size // (2 * scenario.world)) * 2 * (scenario.world - 1) for size in sizes)


def shares_unevenly(scenario: Scenario) -> bool:
    """Whether some trained parameter has a number of elements that is no multiple of the number of ranks."""
    if not isinstance(scenario.model, Odd):
        return scenario.world > 2  # their sizes are even
    single = {1} if scenario.model.scalar else set()
    return any(each % scenario.world for each in scenario.model.rows | single)


def unscales(scenario: Scenario) -> bool:
    """Whether a client unscales the gradients by a GradScaler before the update."""
    return _has_grad_scaler(scenario) and "GradScaler.step without unscale_" not in scenario.settings


def _has_grad_scaler(scenario: Scenario) -> bool:
    dynamic = scenario.scales_dynamically and scenario.loss_scale.scaler == "torch"
    return dynamic or any(name.startswith("GradScaler") for name in scenario.settings)


def shards_a_block(scenario: Scenario) -> bool:
    """Whether a matrix of some block is not so small that it stays whole at stage 3."""
    model = scenario.model
    return not isinstance(model, Odd) or any(model.width * inner > scenario.persistence for inner in model.hidden)


def evaluated_before_update(scenario: Scenario) -> bool:
    """Whether an evaluation comes between a backward and the update of its step."""
    return any(read.what == "evaluation" and read.at > 0 for read in scenario.reads)


def evaluates_alone(scenario: Scenario) -> bool:
    """Whether the client evaluates after the first step, and reads nothing else."""
    return scenario.reads == (Read("evaluation"),)


FACTS: Mapping[str, Callable[[Scenario], bool]] = {
    each.__name__: each
    for each in (
        resumed_unstepped,
        resumed_before_gradient,
        resumed_without_momentum,
        strays_without_momentum,
        momentum_in_part,
        trained_in_part,
        loads_frozen,
        begins_frozen,
        reads_thawed,
        thaws_without_momentum,
        raises_scale,
        rests_after_use,
        late_first_gradient,
        late_first_call,
        late_thaw,
        skips_before_update,
        reduces_in_another_dtype,
        empties_a_shard,
        empties_a_partition,
        shares_unevenly,
        unscales,
        shards_a_block,
        evaluated_before_update,
        evaluates_first,
        evaluates_alone,
    )
}
