"""The suite's power over engines that are wrong for a client's other calls, or that change an object of the client."""

from __future__ import annotations

from typing import Any

import pytest

from zerobench.ranks import Pool
from zerobench.suites.equivalence import test_client, test_loads, test_neighbours, test_own_code
from zerobench.suites.meta.demand import demand_caught
from zerobench.suites.meta.mutants.client import FAILING, HOOKS, NUMBERS, SAVING, TOUCHING, UNREAD
from zerobench.suites.meta.mutants.ddp_rules import BY_PROPERTY
from zerobench.suites.meta.mutants.given import GIVEN_BATCHES, GIVEN_STRIDES, GIVEN_VALUES
from zerobench.suites.meta.mutants.goes_back import GOES_BACK
from zerobench.suites.meta.mutants.own_code import (
    AFTER_FAILURES,
    IN_FORWARDS,
    IN_MODES,
    IN_OTHER_GROUPS,
    IN_THREADS,
    SIDE_BY_SIDE,
    WITHOUT_HOOKS,
    WITHOUT_LATE_HOOKS,
)
from zerobench.suites.meta.mutants.parts import PARTS
from zerobench.suites.meta.mutants.returned import RETURNED_LOSSES, RETURNED_READINGS
from zerobench.suites.meta.mutants.seldom_metered import IN_FAILED_LOADS
from zerobench.suites.meta.mutants.together import TOGETHER_IN_DRAWS
from zerobench.suites.meta.mutants.two_at_once import (
    GROUPS_AT_ONCE,
    IN_LOADS,
    MODES_AT_ONCE,
    SAVING_AT_ONCE,
    THREADS_AT_ONCE,
    UNREAD_AT_ONCE,
)
from zerobench.suites.meta.mutants.unmet import AFTER_FAILED_EVALUATIONS, WITHOUT_INPUTS
from zerobench.suites.meta.power.catching import catch
from zerobench.suites.support.trials import Trials

_CASES = [
    *((mutant, test_client.test_saving_changes_nothing) for mutant in [*SAVING, *RETURNED_LOSSES, *SAVING_AT_ONCE]),
    *((mutant, test_client.test_outcomes_need_no_reader) for mutant in [*UNREAD, *GIVEN_BATCHES, *UNREAD_AT_ONCE]),
    *((mutant, test_client.test_the_client_keeps_its_state) for mutant in [*TOUCHING, *IN_LOADS]),
    *(
        (mutant, test_client.test_the_client_keeps_its_state)
        for mutant in [*GIVEN_VALUES, *GIVEN_STRIDES, *RETURNED_READINGS]
    ),
    *((mutant, test_loads.test_random_numbers_go_on_after_a_load) for mutant in NUMBERS),
    *((mutant, test_loads.test_a_load_that_fails_changes_nothing) for mutant in [*FAILING, *IN_FAILED_LOADS]),
    *((mutant, test_loads.test_a_trained_engine_keeps_what_a_load_leaves_out) for mutant in PARTS),
    *((mutant, test_neighbours.test_torch_is_left_as_it_was) for mutant in HOOKS),
    *((mutant, test_own_code.test_threads_change_nothing) for mutant in [*IN_THREADS, *THREADS_AT_ONCE]),
    *((mutant, test_own_code.test_a_group_of_other_ranks) for mutant in [*IN_OTHER_GROUPS, *GROUPS_AT_ONCE]),
    *((mutant, test_own_code.test_modes_of_the_client_change_nothing) for mutant in [*IN_MODES, *MODES_AT_ONCE]),
    *((mutant, test_own_code.test_a_failure_changes_nothing) for mutant in AFTER_FAILURES),
    *((mutant, test_own_code.test_a_failed_evaluation_changes_nothing) for mutant in AFTER_FAILED_EVALUATIONS),
    *((mutant, test_own_code.test_inputs_with_gradients_change_nothing) for mutant in WITHOUT_INPUTS),
    *((mutant, test_own_code.test_hooks_of_parameters_hold) for mutant in WITHOUT_HOOKS),
    *((mutant, test_own_code.test_hooks_that_come_late_hold) for mutant in WITHOUT_LATE_HOOKS),
    *((mutant, test_own_code.test_engines_train_side_by_side) for mutant in SIDE_BY_SIDE),
    *((mutant, test_own_code.test_calls_within_a_forward) for mutant in IN_FORWARDS),
    *((mutant, test_loads.test_a_return_to_an_older_state) for mutant in GOES_BACK),
]


#: Engines without a promise of bits, each with the property that catches it.
WITHOUT_BITS = [
    (name, mutant) for by_name in (BY_PROPERTY, TOGETHER_IN_DRAWS) for name in by_name for mutant in by_name[name]
]


@pytest.mark.rotating
@pytest.mark.parametrize(("name", "mutant"), WITHOUT_BITS, ids=lambda each: getattr(each, "__name__", ""))
def test_an_engine_without_a_promise_is_caught(pool: Pool, name: str, mutant: Any) -> None:
    """An engine without a promise of bits that is wrong under one condition fails the property that draws it."""
    trials = Trials.of(pool, mutant)
    caught = catch(trials, name)
    replayed = name != "test_overflow_on_one_rank"  # the error against float64 is not a number with and without it
    demand_caught(trials, mutant, None if caught is None else caught.failure, replayed=replayed)


@pytest.mark.rotating
@pytest.mark.parametrize(("mutant", "test"), _CASES, ids=lambda each: each.__name__ if isinstance(each, type) else "")
def test_a_clients_engine_is_caught(pool: Pool, mutant: Any, test: Any) -> None:
    """An engine that is wrong after a save or after a load that fails, wrong if nobody reads, or that changes the
    client's things or torch's, fails, and the message points at it."""
    trials = Trials.of(pool, mutant)
    caught = catch(trials, test.__name__)
    demand_caught(trials, mutant, None if caught is None else caught.failure)
