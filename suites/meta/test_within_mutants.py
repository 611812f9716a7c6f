"""The suite's power over engines that cost more at a moment at which no ledger looks."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from zerobench.ranks import Pool
from zerobench.scenario import Scenario
from zerobench.suites.accounting import (
    call_costs,
    costs,
    test_bounds,
    test_eventful,
    test_history,
    test_memory,
    test_wire,
    test_within,
)
from zerobench.suites.meta.demand import demand_caught
from zerobench.suites.meta.mutants.different import RightWithBarriers
from zerobench.suites.meta.mutants.events import (
    COMPUTED_AGAIN,
    EDITED_IN_16_BITS,
    FROM_OTHERS,
    GROWN_WITH_THE_SCALE,
    IN_A_LOAD,
    IN_AN_EVALUATION_UNSHARDED,
    IN_AN_UPDATE_IN_16_BITS,
    IN_BUILDING,
    KEPT_IN_16_BITS,
    LEFT_BY_EVENTS,
    LEFT_BY_THE_FIRST_EDIT,
    SENT_AFTER_EVENTS,
    SENT_IN_FURTHER_FORWARDS,
    SENT_IN_SHORT_STEPS,
    SENT_IN_SKIPPED_STEPS,
    WRITTEN,
)
from zerobench.suites.meta.mutants.last_event import (
    AFTER_A_LOAD_OF_A_PART,
    AFTER_A_SECOND_SAVE,
    AFTER_A_SKIP,
    AFTER_A_SKIP_UNSHARDED,
    AFTER_AN_EVALUATION,
)
from zerobench.suites.meta.mutants.moments import (
    BESIDE_TENSORS_OF_EACH_STEP,
    IN_A_FORWARD,
    IN_ANY_CALL,
    OF_A_PAIR_OF_SETTINGS,
    OUTSIDE_THE_ENGINE,
)
from zerobench.suites.meta.mutants.own_code import LEFT_BY_FAILURES
from zerobench.suites.meta.mutants.seldom_metered import (
    BESIDE_MAPS,
    IN_MAPS,
    OF_SCHEDULERS,
    ON_OTHER_RANKS_IN_BACKWARD,
    ON_THE_THIRD_RANK,
    READ_IN_LOADS,
)
from zerobench.suites.meta.mutants.uses import (
    ACCUMULATED,
    BESIDE_TENSORS,
    BETWEEN_MICRO_STEPS,
    EDITED,
    FROZEN,
    GROWN,
    GROWN_WITH_SHARDED_PARAMETERS,
    IN_EVALUATIONS_AFTER_A_SKIP,
    IN_EVALUATIONS_IN_16_BITS,
    IN_FILES_AFTER_LOADS,
    IN_LATER_EVALUATIONS,
    LEFT,
    ON_THE_WIRE,
    UPLOADED,
)
from zerobench.suites.meta.mutants.within import (
    AFTER_A_READING,
    AROUND_SAVES,
    GROWING,
    HIDDEN,
    IN_A_READING,
    IN_AN_EDIT,
    IN_AN_EVALUATION,
    IN_AN_UPDATE,
    IN_FILES,
    LEAVING,
    OFFLOADED_AFTER_A_READING,
    SAVED,
    SENDING,
    SENT_BY_CALLS,
    UNDECLARED,
    WAITING,
)
from zerobench.suites.meta.power.catching import Check, Failure, again, failure_of
from zerobench.suites.support.trials import Trials


def _at(test: Any, stage: int, *others: Any) -> Check:
    return lambda trials: test(trials, stage, *others)


def _after_an_evaluation(trials: Trials) -> None:
    test_history.test_gradients_wait_no_longer_after_a_call(trials, 2, "evaluation")


#: Its Scenarios of stage 1.
_OF_A_STAGE = test_memory.test_nothing_is_hidden_whatever_the_scenario.by_stage[1]  # type: ignore[attr-defined]

_IN_BACKWARD = test_bounds.test_a_backward_holds_its_shard_and_its_buckets
_AFTER_A_SKIP = test_history.test_a_step_costs_the_same_after_a_skipped_step
_LONG_RUN = test_history.test_memory_does_not_grow_in_a_long_run
_BETWEEN_MICRO_STEPS = test_history.test_an_evaluation_between_micro_steps_leaves_nothing


_EVALUATION = test_within.test_an_evaluation_holds_few_blocks
_SETTINGS = Scenario(model=test_eventful.DEEP, stage=2, steps=3, chunk=256, micro_batch=1, max_live=0).but(
    **test_eventful.OF_A_BLOCK
)


def _any_call(trials: Trials) -> None:
    call_costs.each_call(trials, _SETTINGS)


def _pair_of_settings(trials: Trials) -> None:
    costs.undeclared(trials, _SETTINGS.but(dtype="bf16", accumulation=2))


_CASES: list[tuple[Any, Check]] = [
    *((mutant, _any_call) for mutant in IN_ANY_CALL),
    *((mutant, _at(test_within.test_a_forward_holds_few_blocks, 1, "fp32")) for mutant in IN_A_FORWARD),
    *((mutant, _at(_LONG_RUN, 1)) for mutant in BESIDE_TENSORS_OF_EACH_STEP),
    *((mutant, _at(test_within.test_nothing_is_left_of_a_closed_engine, 1)) for mutant in OUTSIDE_THE_ENGINE),
    *((mutant, _pair_of_settings) for mutant in OF_A_PAIR_OF_SETTINGS),
    *((mutant, _at(test_within.test_an_update_holds_its_shard, 2)) for mutant in IN_AN_UPDATE),
    *((mutant, _at(test_within.test_an_update_holds_nothing_of_a_reading, 2)) for mutant in AFTER_A_READING),
    *((m, _at(test_within.test_an_update_holds_nothing_of_a_reading, 1)) for m in OFFLOADED_AFTER_A_READING),
    *((mutant, _at(_EVALUATION, 3, "fp32")) for mutant in IN_AN_EVALUATION),
    *((mutant, _at(test_within.test_little_is_undeclared, 0)) for mutant in [*UNDECLARED, *KEPT_IN_16_BITS]),
    *((mutant, _at(_EVALUATION, 0, "fp32")) for mutant in IN_AN_EVALUATION_UNSHARDED),
    *((mutant, _at(test_within.test_building_holds_few_blocks, 3)) for mutant in IN_BUILDING),
    *((mutant, test_within.test_calls_between_steps_write_nothing) for mutant in WRITTEN),
    *((mutant, _at(test_within.test_a_load_of_other_ranks_receives_little, 1)) for mutant in FROM_OTHERS),
    *(
        (mutant, _at(test_within.test_building_and_saving_receive_little, 1))
        for mutant in [*SENDING, *AFTER_A_SECOND_SAVE]
    ),
    *((mutant, _at(test_within.test_an_edit_holds_few_blocks, 3)) for mutant in IN_AN_EDIT),
    *((mutant, _at(test_within.test_a_reading_holds_what_it_returns, 3)) for mutant in IN_A_READING),
    *((mutant, _at(test_within.test_loads_and_edits_receive_little, 1)) for mutant in SENT_BY_CALLS),
    *((mutant, _at(test_within.test_loads_and_edits_receive_little, 3)) for mutant in IN_EVALUATIONS_IN_16_BITS),
    *((mutant, _at(test_within.test_a_saved_state_has_each_state_once, 1)) for mutant in SAVED),
    *((mutant, _at(test_within.test_nothing_is_left_of_a_closed_engine, 1)) for mutant in LEAVING),
    *((mutant, _at(test_within.test_files_have_what_is_declared, 3)) for mutant in IN_FILES),
    *((mutant, _at(_LONG_RUN, 1)) for mutant in GROWING),
    *((mutant, again(test_history.test_a_step_costs_the_same_after_a_save)) for mutant in AROUND_SAVES),
    *((mutant, again(_OF_A_STAGE, 40)) for mutant in HIDDEN),
    *((mutant, _after_an_evaluation) for mutant in WAITING),
    *((mutant, _at(_EVALUATION, 3, "fp32")) for mutant in IN_LATER_EVALUATIONS),
    *((mutant, again(test_history.test_cost_of_an_evaluation)) for mutant in IN_EVALUATIONS_AFTER_A_SKIP),
    *((mutant, _at(_BETWEEN_MICRO_STEPS, 3)) for mutant in BETWEEN_MICRO_STEPS),
    *((mutant, _at(test_within.test_files_have_what_is_declared, 3)) for mutant in IN_FILES_AFTER_LOADS),
    *((mutant, _at(test_bounds.test_memory_is_in_tensors, 1, "half")) for mutant in BESIDE_TENSORS),
    *((mutant, _at(test_within.test_nothing_is_left_of_a_closed_engine, 1)) for mutant in LEFT),
    *((mutant, _at(_LONG_RUN, 1)) for mutant in GROWN),
    *((mutant, _at(_LONG_RUN, 3)) for mutant in GROWN_WITH_SHARDED_PARAMETERS),
    *((mutant, _at(test_within.test_little_is_undeclared, 1)) for mutant in [*EDITED, *LEFT_BY_THE_FIRST_EDIT]),
    *((mutant, _at(test_within.test_little_is_undeclared, 3)) for mutant in [*FROZEN, *EDITED_IN_16_BITS, *UPLOADED]),
    *((mutant, _at(test_within.test_little_is_undeclared, 0)) for mutant in AFTER_A_SKIP_UNSHARDED),
    *((mutant, _at(test_within.test_little_is_undeclared, 2)) for mutant in [*AFTER_A_SKIP, *AFTER_A_LOAD_OF_A_PART]),
    *((mutant, _at(test_within.test_little_is_undeclared, 3)) for mutant in AFTER_AN_EVALUATION),
    *((mutant, _at(test_within.test_events_leave_little, 1)) for mutant in LEFT_BY_EVENTS),
    *((mutant, _at(test_within.test_an_update_in_16_bits_holds_its_shard, 2)) for mutant in IN_AN_UPDATE_IN_16_BITS),
    *((mutant, _at(test_within.test_a_save_and_a_load_hold_little, 1)) for mutant in [*IN_A_LOAD, *READ_IN_LOADS]),
    *((mutant, _at(test_bounds.test_a_backward_frees_what_it_computes_again, 2)) for mutant in COMPUTED_AGAIN),
    *((mutant, _at(_LONG_RUN, 1)) for mutant in SENT_AFTER_EVENTS),
    *((mutant, again(_AFTER_A_SKIP)) for mutant in SENT_IN_SKIPPED_STEPS),
    *(
        (mutant, _at(test_history.test_a_short_step_costs_as_much_as_its_micro_steps, 1))
        for mutant in SENT_IN_SHORT_STEPS
    ),
    *(
        (mutant, _at(test_history.test_a_further_forward_costs_what_an_evaluation_does, 3, "dropped"))
        for mutant in SENT_IN_FURTHER_FORWARDS
    ),
    *((mutant, _at(_LONG_RUN, 2)) for mutant in GROWN_WITH_THE_SCALE),
    *((mutant, _at(_IN_BACKWARD, 2, 3)) for mutant in ACCUMULATED),
    *((mutant, _at(_IN_BACKWARD, 2, 1)) for mutant in ON_OTHER_RANKS_IN_BACKWARD),
    *((mutant, _at(test_within.test_little_is_undeclared, 2)) for mutant in ON_THE_THIRD_RANK),
    *((mutant, _at(test_bounds.test_memory_is_in_tensors, 1, "none")) for mutant in IN_MAPS),
    *((mutant, _at(test_bounds.test_memory_is_in_tensors, 1, "files")) for mutant in BESIDE_MAPS),
    *((mutant, _at(_LONG_RUN, 2)) for mutant in OF_SCHEDULERS),
    *((mutant, _at(test_within.test_nothing_is_left_of_forwards_that_raise, 2)) for mutant in LEFT_BY_FAILURES),
]


def _caught(trials: Trials, check: Check) -> Failure | None:
    return failure_of(partial(check, trials))


@pytest.mark.rotating
@pytest.mark.parametrize(("mutant", "check"), _CASES, ids=[mutant.__name__ for mutant, _ in _CASES])
def test_costs_at_other_moments_are_caught(pool: Pool, mutant: Any, check: Check) -> None:
    """An engine that holds more within a call, sends more while it is built or saved, or leaves something, fails."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, _caught(trials, check))


@pytest.mark.rotating
def test_a_barrier_before_an_update_is_no_alarm(pool: Pool) -> None:
    """If an engine waits for the other ranks at the beginning of its update, it may still keep what was read."""
    trials = Trials.of(pool, RightWithBarriers)
    assert _caught(trials, _at(test_within.test_an_update_holds_nothing_of_a_reading, 0)) is None


@pytest.mark.alone
@pytest.mark.rotating
@pytest.mark.parametrize("mutant", ON_THE_WIRE, ids=lambda mutant: mutant.__name__)
def test_bytes_of_a_step_in_which_a_parameter_rests_are_caught(pool: Pool, mutant: Any) -> None:
    """If an engine sends through a store only where a parameter has no gradient, it fails on a model that has one."""
    trials = Trials.of(pool, mutant)
    check = _at(test_wire.test_the_wire_carries_little_else, 1, test_wire.RESTING)
    demand_caught(trials, mutant, _caught(trials, check))
