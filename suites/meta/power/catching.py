"""Catching: a property on an engine of our choice, with the draws of the default profile, until it fails."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Unsatisfiable

from zerobench.errors import Disagreement
from zerobench.ranks import RankFault
from zerobench.suites.accounting import grid, test_bounds, test_history, test_memory, test_traffic
from zerobench.suites.api import test_edits
from zerobench.suites.equivalence import (
    test_client,
    test_contract,
    test_every_engine,
    test_every_step,
    test_loads,
    test_neighbours,
    test_own_code,
    test_resume,
    test_steps,
)
from zerobench.suites.support import covering
from zerobench.suites.support.drawing import course, draw
from zerobench.suites.support.rerun import named
from zerobench.suites.support.strategies import has_one_stage
from zerobench.suites.support.trials import Trials

Failure = Disagreement | RankFault
Check = Callable[[Trials], None]

#: Examples of a property with share 1 in the default profile (suites/conftest.py).
_EXAMPLES = 40
#: Properties that draw.
_DRAWN: list[Any] = [
    test_contract.test_equals_the_canonical_trainer,
    test_contract.test_buckets_that_end_with_a_parameter,
    test_steps.test_overflow_moves_nothing,
    test_steps.test_dynamic_loss_scale,
    test_traffic.test_traffic_whatever_the_scenario,
    test_memory.test_resident_bytes_whatever_the_scenario,
    test_history.test_a_step_costs_the_same_after_a_reading,
    test_edits.test_edits_persist,
    test_loads.test_random_numbers_go_on_after_a_load,
    test_loads.test_a_load_that_fails_changes_nothing,
]
#: Properties of every engine, which draw at each stage; those that catch most wrong engines come first.
WEAK: list[Any] = [
    test_every_step.test_each_step_follows_from_the_one_before,
    test_every_step.test_dynamic_loss_scale_follows,
    test_every_step.test_a_block_that_rests,
    test_every_step.test_buckets_that_end_with_a_parameter_follow,
    test_every_engine.test_ranks_agree,
    test_every_step.test_exact_steps,
    test_every_engine.test_overflow_on_one_rank,
    test_every_engine.test_evaluation_changes_nothing,
    test_every_engine.test_reading_changes_nothing,
    test_every_engine.test_reading_gradients_changes_nothing,
    test_every_engine.test_static_scale_changes_nothing,
    test_every_engine.test_dynamic_scale_equals_static,
    test_every_step.test_building_is_inert,
    test_every_engine.test_engines_share_nothing,
    test_every_step.test_sums_in_fp32_follow,
    test_every_step.test_one_reduction_follows,
    test_every_engine.test_ranks_agree_on_overflow,
    test_client.test_saving_changes_nothing,
    test_client.test_outcomes_need_no_reader,
    test_client.test_the_client_keeps_its_state,
    test_every_step.test_each_step_follows_between_readings,
]
#: Properties of engines that load a state, a part of it, or an older one.
_OF_LOADS: list[Any] = [
    test_resume.test_each_step_follows_over_any_load,
    test_loads.test_a_trained_engine_keeps_what_a_load_leaves_out,
    test_loads.test_a_return_to_an_older_state,
]
#: Properties of code of the client.
_OF_OWN_CODE: list[Any] = [
    test_own_code.test_threads_change_nothing,
    test_own_code.test_a_group_of_other_ranks,
    test_own_code.test_modes_of_the_client_change_nothing,
    test_own_code.test_a_failure_changes_nothing,
    test_own_code.test_a_failed_evaluation_changes_nothing,
    test_own_code.test_inputs_with_gradients_change_nothing,
    test_own_code.test_hooks_of_parameters_hold,
    test_own_code.test_hooks_that_come_late_hold,
    test_own_code.test_engines_train_side_by_side,
    test_own_code.test_calls_within_a_forward,
]
_STAGES = (3, 1, 2, 0)
#: Properties with fixed Scenarios, and the arguments of each.
_FIXED: list[tuple[Any, list[tuple[Any, ...]]]] = [
    (test_memory.test_memory_does_not_grow, [(each,) for each in grid.LIVING.values()]),
    (test_bounds.test_a_backward_holds_its_shard_and_its_buckets, list(itertools.product([2, 3], [1, 3]))),
    (test_neighbours.test_torch_is_left_as_it_was, [(2,)]),
]


@dataclass(frozen=True)
class Caught:
    """The failure of a property, and the number of Scenarios that it ran, the failing one included."""

    property: str
    failure: Failure
    scenarios: int


def again(test: Any, examples: int | None = None, strategy: Any = None) -> Check:
    """The property's test without shrinking, with the default profile's number of draws or with ``examples``, on its
    own Scenarios or on those of ``strategy``."""
    check = _drawing(test, examples or default_examples(test), strategy)
    if examples is not None or test.of_one_stage is None:
        return check
    of_one_stage = _drawing(test, _examples(test.of_one_stage), strategy)
    return lambda trials: (of_one_stage if has_one_stage(trials) else check)(trials)


def _drawing(test: Any, examples: int, strategy: Any) -> Check:
    chosen = settings(
        max_examples=examples,
        backend=covering.backend(test.backend.removeprefix(covering.PREFIX)),  # with the seed of now
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    return draw(test.test, test.strategy if strategy is None else strategy, chosen)


def default_examples(test: Any) -> int:
    """The number of draws of a property in the default profile."""
    return _examples(test.share)


def _examples(share: float) -> int:
    return max(1, round(_EXAMPLES * share))


def failure_of(check: Callable[[], None]) -> Failure | None:
    """The failure of a check; None if it passes."""
    try:
        check()
    except (Disagreement, RankFault) as failure:
        return failure
    return None


class Catching:
    """Runs checks of properties on one engine until one fails, and counts the Scenarios that it has run."""

    def __init__(self, trials: Trials) -> None:
        self.trials, self.scenarios = trials, 0

    def failure(self, test: Any, checks: Iterator[Check]) -> Caught | None:
        """The failure of the first of a property's checks that fails."""
        for check in checks:
            failure = self._run(test, check)
            self.scenarios += course().ran + (not course().drawn)  # a check of a fixed Scenario draws none
            if failure is not None:
                self.scenarios += bool(course().drawn)
                return Caught(test.__name__, failure, self.scenarios)
        return None

    def _run(self, test: Any, check: Check) -> Failure | None:
        course().restart()
        with (
            named(test),
            suppress(Unsatisfiable, pytest.skip.Exception),
        ):  # no draw was exact, or the stage is not offered
            return failure_of(partial(check, self.trials))
        return None


def catch(trials: Trials, name: str) -> Caught | None:
    """The failure of the property of this name on the engine; None if it passes.

    Raises:
        KeyError: no property that historical bugs fail has this name.
    """
    test, checks = PROPERTIES[name]
    return Catching(trials).failure(test, checks())


def catch_weakly(trials: Trials) -> Caught | None:
    """The failure of the first property of every engine that fails; None if all pass."""
    catching = Catching(trials)
    failures = (catching.failure(test, _at_each_stage(test)) for test in WEAK)
    return next((caught for caught in failures if caught is not None), None)


def _drawn(test: Any) -> Iterator[Check]:
    yield again(test)


def _at_each_stage(test: Any) -> Iterator[Check]:
    return (again(test.by_stage[stage]) for stage in _STAGES)


def _fixed(test: Any, arguments: list[tuple[Any, ...]]) -> Iterator[Check]:
    for each in arguments:
        yield lambda trials, each=each: test(trials, *each)  # type: ignore[misc]


#: By its name, a property and what makes its checks.
PROPERTIES: dict[str, tuple[Any, Callable[[], Iterator[Check]]]] = {
    **{test.__name__: (test, partial(_drawn, test)) for test in _DRAWN},
    **{test.__name__: (test, partial(_at_each_stage, test)) for test in [*WEAK, *_OF_LOADS, *_OF_OWN_CODE]},
    **{test.__name__: (test, partial(_fixed, test, arguments)) for test, arguments in _FIXED},
}
#: The properties that judge numbers, and not bytes or edits.
JUDGES_NUMBERS = {test.__name__ for test in [*_DRAWN[:4], *WEAK]}


def first_failure(trials: Trials, properties: list[Any], patience: Sequence[int] = (12, 110)) -> Failure | None:
    """The failure of the first property that fails, after few examples of each, then after many; None if all pass."""
    for examples, test in itertools.product(patience, properties):
        failure = failure_of(partial(again(test, examples), trials))
        if failure:
            return failure
    return None
