"""Offered: the Scenario that an engine offers nearest to a drawn one, so that no draw is lost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeVar

from zerobench import findings
from zerobench.findings import KnownFinding
from zerobench.scenario import LossScale, Optimizer, Read, Scenario
from zerobench.subject import Subject
from zerobench.suites.support.covering import PECULIAR

#: A reason not to run a Scenario.
R = TypeVar("R")

#: A Scenario that every engine offers at its stages.
PLAINEST = Scenario(loss_scale=LossScale(static=1.0))
#: The values of each field that most engines offer, by field of the Scenario, of its optimizer and of its model.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "settings": ((),),
    "saving": ("",),
    "norm_type": ("2",),
    "offload_param": ("none", "cpu"),
    "offload_optimizer": ("none", "cpu"),
    "offload_ratio": (1.0,),
    "accumulator_dtype": (None, "fp32"),
    "communication_dtype": (None, "fp32", "bf16", "fp16"),
    "schedule": ("auto", "micro_step", "boundary"),
    "scaler": ("torch",),
    "loss_scale": (LossScale(static=16.0),),
    "poison": ((),),
    "poison_by": ("inf",),
    "reads": ((),),
    "loads": ("all", "without_optimizer"),
    "loads_into": ("new", "trained"),
    "frozen_in": ("all",),
    "persistent": (True,),
    "scheduled_by": ("client",),
    "lr_factors": ((),),
    "weight_decay_factors": ((),),
    "momentum_factors": ((),),
    "eps_factors": ((),),
    "ragged": (False,),
    "forwards": ("one",),
    "autocast": (False,),
    "short_steps": ((),),
    "edits": ((),),
    "gradient_edits": ((),),
    "frozen_steps": ((),),
    "ranks_differ": (False,),
    "clip": (0.0,),
    "dtype": ("fp32", "fp16"),
    "accumulation": (1,),
    "world": (2, 1, 4),
    "replicate": (1, 2),
    "second_group": (False,),
    "third_group": (False,),
    "name": ("adamw", "sgd", "lion"),
    "routes": ("steps",),
    "recompute": ("none",),
    "dropout": (0.0,),
    **dict.fromkeys(PECULIAR, (False,)),
}


def at_offered_stage(subject: type[Subject], scenario: Scenario, plain: Scenario = PLAINEST) -> Scenario:
    """The Scenario at one of the stages at which the engine offers the plain one, or one near it; at its own if
    there are none."""
    stages = offered_stages(subject, plain)
    return scenario.but(stage=stages[scenario.stage % len(stages)]) if stages else scenario


@cache
def offered_stages(subject: type[Subject], plain: Scenario = PLAINEST) -> Sequence[int]:
    """The stages at which the engine offers the plain Scenario, or one near it."""
    fixed = ("stage", "settings", "world")
    return [stage for stage in range(4) if isinstance(nearest(subject, plain.but(stage=stage), fixed), Scenario)]


def obstacle(subject: type[Subject], scenario: Scenario, cost: str = "") -> str | KnownFinding | None:
    """The engine's reason if it does not offer the Scenario, or the known finding that describes it.

    A test of the accounting gives its ``cost``, which has known findings of its own.
    """
    reason = subject.not_offered(scenario)
    return findings.matching(subject, scenario, cost) if reason is None else reason


def nearest(subject: type[Subject], scenario: Scenario, fixed: Collection[str]) -> Scenario | str:
    """The Scenario with fields made plain, one after another, each time that this removes the engine's reason.

    Fields in ``fixed`` keep their value. An engine names one reason at a time, and a change may reach another reason
    without a need; in the end such a field gets its value back. If the engine refuses the Scenario with every
    change, the reason that the fixed fields give.
    """
    found, refused = _nearest(subject.not_offered, scenario, fixed, (_with_one, _with_two))
    if found is not None:
        return found
    reason, _ = refused[-1]
    return _reason_of_fixed(subject, [each for _, each in refused], fixed) or reason


def _reason_of_fixed(subject: type[Subject], refused: Sequence[Scenario], fixed: Collection[str]) -> str | None:
    """The reason of the first Scenario that the engine offers, at some stage, if the fixed fields are plain, too.

    A change of the search may give a reason of its own, such as that the engine has no hybrid sharding.
    """
    free = [name for name in _PLAIN if name not in fixed]
    for each in (*refused, *(_plain(one, free) for one in refused)):
        plain = _plain(each, fixed)
        if any(subject.not_offered(plain.but(stage=stage)) is None for stage in range(4)):
            return subject.not_offered(each)
    return None


def _plain(scenario: Scenario, names: Collection[str]) -> Scenario:
    """With these fields plain."""
    for name in names:
        if name in _PLAIN and hasattr(_holder(scenario, name), name):
            scenario = _changed(scenario, name, _PLAIN[name][0])
    return scenario


def nearest_unknown(
    subject: type[Subject], scenario: Scenario, fixed: Collection[str], cost: str = ""
) -> Scenario | None:
    """So changed, the Scenario that no known finding of the engine describes either; None if there is none."""
    found, _ = _nearest(partial(obstacle, subject, cost=cost), scenario, fixed, (_with_one,))
    return _past_findings(subject, scenario, fixed, cost) if found is None else found


def _past_findings(subject: type[Subject], scenario: Scenario, fixed: Collection[str], cost: str) -> Scenario | None:
    """The same by changes that the engine offers, of which each leaves as few alternatives of known findings as it can.

    A Scenario with several peculiarities may have several alternatives of one finding, all of which have to go.
    """
    kept, left = set(fixed), findings.in_the_way(subject, scenario, cost)
    while left:
        offered = (near for near in _with_one(scenario) if not near[0] & kept and not subject.not_offered(near[1]))
        counted = [(findings.in_the_way(subject, each, cost), names, each) for names, each in offered]
        fewest = min(counted, key=lambda each: each[0], default=None)
        if fewest is None or fewest[0] >= left:
            return None
        left, names, scenario = fewest
        kept |= names
    return scenario


#: The Scenarios that a search met, each the first one with its reason.
_Refused = list[tuple[R, Scenario]]


def _nearest(
    reason_of: Callable[[Scenario], R | None], scenario: Scenario, fixed: Collection[str], changes: Sequence[_Changes]
) -> tuple[Scenario | None, _Refused[R]]:
    """The first Scenario without a reason, if there is one, and those that the searches met."""
    if (reason := reason_of(scenario)) is None:
        return scenario, []
    refused: _Refused[R] = []
    for change in changes:
        seen = [(reason, scenario)]
        if (path := _path(reason_of, change, scenario, set(fixed), seen)) is not None:
            kept, found = path
            return _restored(reason_of, found, scenario, kept.difference(fixed)), refused
        refused += seen
    return None, refused


def _path(
    reason_of: Callable[[Scenario], R | None],
    change: _Changes,
    scenario: Scenario,
    kept: set[str],
    seen: _Refused[R],
) -> tuple[set[str], Scenario] | None:
    """The fields of a search that ends without a reason, and its Scenario; None if there is none.

    Each change gives no reason, or one that the search has not seen. If a change leads nowhere, the next one is tried.
    """
    tried = [(names, each, reason_of(each)) for names, each in change(scenario) if not names & kept]
    for names, each, reason in sorted(tried, key=lambda one: one[2] is not None):
        if reason is None:
            return kept | names, each
        if len(seen) == _most(change) or any(reason == earlier for earlier, _ in seen):
            continue
        seen.append((reason, each))
        if (found := _path(reason_of, change, each, kept | names, seen)) is not None:
            return found
    return None


def _most(change: _Changes) -> int:
    """The most reasons that a search meets: a Scenario has thousands of neighbours in two fields."""
    return 4 if change is _with_two else 40


def _restored(
    reason_of: Callable[[Scenario], R | None], found: Scenario, drawn: Scenario, changed: Collection[str]
) -> Scenario:
    """With the drawn value of each changed field that gives no reason, if need be after another field's."""
    for name in sorted(changed):
        restored = _changed(found, name, _value(drawn, name))
        if reason_of(restored) is None:
            return _restored(reason_of, restored, drawn, set(changed) - {name})
    return found


#: Fields, and the Scenario with these made plain.
_Near = tuple[set[str], Scenario]
_Changes = Callable[[Scenario], Iterator[_Near]]


def _with_one(scenario: Scenario) -> Iterator[_Near]:
    return (({name}, each) for name, each in _neighbours(scenario))


def _with_two(scenario: Scenario) -> Iterator[_Near]:
    """With two fields changed: either may be a reason by itself."""
    for one, changed in _neighbours(scenario):
        yield from (({one, two}, each) for two, each in _neighbours(changed) if one != two)


def _neighbours(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    """The Scenarios with one field made plain, by its name: first those with the plainest value of a field.

    A less plain one, such as offload of a Scenario that has none, may reach another reason without a need.
    """
    fields = {name: values for name, values in _PLAIN.items() if hasattr(_holder(scenario, name), name)}
    plainest = ((name, values[:1]) for name, values in fields.items())
    others = ((name, values[1:]) for name, values in fields.items())
    for name, values in (*plainest, *others):
        current = _value(scenario, name)
        yield from ((name, _changed(scenario, name, value)) for value in values if value != current)


def _holder(scenario: Scenario, name: str) -> Any:
    """The Scenario, its optimizer, its loss scale or its model: the one that has the field."""
    parts = (scenario, scenario.optimizer, scenario.loss_scale)
    return next((each for each in parts if hasattr(each, name)), scenario.model)


def _value(scenario: Scenario, name: str) -> Any:
    return getattr(_holder(scenario, name), name)


def _changed(scenario: Scenario, name: str, value: Any) -> Scenario:
    holder = replace(_holder(scenario, name), **{name: value})
    if isinstance(holder, Scenario):
        return fitted(holder)
    part = {Optimizer: "optimizer", LossScale: "loss_scale"}.get(type(holder), "model")
    return scenario.but(**{part: holder})


def fitted(scenario: Scenario) -> Scenario:
    """With bad leaves, zeroed leaves and readings that the world and the micro-steps have; autocast in fp32 alone."""
    poison = tuple((step, leaf % scenario.leaves_of(step)) for step, leaf in scenario.poison)
    zeroed = tuple((step, leaf) for step, leaf in scenario.zeroed if leaf < scenario.leaves_of(step))
    reads = tuple(_fitted_read(each, scenario.micro_steps_of(each.step)) for each in scenario.reads)
    autocast = scenario.autocast and scenario.dtype == "fp32"
    return scenario.but(poison=poison, zeroed=zeroed, reads=reads, autocast=autocast)


def _fitted_read(read: Read, last: int) -> Read:
    return replace(read, at=last if read.what == "gradients" else min(read.at, last))
