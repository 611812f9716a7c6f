"""The suite's own power: it must fail on every wrong engine and name the place."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
from hypothesis import find

from zerobench.oracles.rules import RULES
from zerobench.ranks import Pool
from zerobench.suites.accounting import (
    grid,
    test_bounds,
    test_history,
    test_memory,
    test_offload,
    test_traffic,
    test_wire,
)
from zerobench.suites.api import test_edits
from zerobench.suites.equivalence import (
    test_contract,
    test_every_engine,
    test_peers,
    test_rare_values,
    test_steps,
    test_turns,
)
from zerobench.suites.meta.demand import demand_caught
from zerobench.suites.meta.mutants.accounting import HOARDERS, SPENDTHRIFTS, HoldsTheFirstGradients
from zerobench.suites.meta.mutants.autocast import AUTOCAST
from zerobench.suites.meta.mutants.boundaries import BOUNDARIES
from zerobench.suites.meta.mutants.bytes import (
    AROUND_EVALUATIONS,
    AROUND_READINGS,
    AROUND_SKIPPED_STEPS,
    GROWING,
    HIDING,
    IN_EVALUATIONS,
    IN_SKIPPED_STEPS,
    REPLICATING,
    WHISPERING,
    GathersForEveryParameterRead,
    KeepsGradientsDuringBackward,
)
from zerobench.suites.meta.mutants.counts import COUNT_MUTANTS, AveragesOverEightRanks
from zerobench.suites.meta.mutants.ddp import DDP
from zerobench.suites.meta.mutants.ddp_rules import OF_READINGS
from zerobench.suites.meta.mutants.edit import EDIT_MUTANTS
from zerobench.suites.meta.mutants.goes_back import OVER_AN_EDIT
from zerobench.suites.meta.mutants.gradient_edits import GRADIENT_EDITS
from zerobench.suites.meta.mutants.hundreds import HUNDREDS
from zerobench.suites.meta.mutants.ignored import (
    IGNORED,
    IgnoresConsecutiveHysteresis,
    IgnoresLrDecay,
    IgnoresTheStaticScale,
    RefillsHysteresisAlways,
)
from zerobench.suites.meta.mutants.inputs import INPUTS
from zerobench.suites.meta.mutants.late import LATE_MUTANTS, ComputesWithUnitsThatHaveNotArrived
from zerobench.suites.meta.mutants.limits import LIMITS
from zerobench.suites.meta.mutants.offload import OFFLOAD_MUTANTS, CopiesTwice, ReadsTheWrongSubGroup, RightInFiles
from zerobench.suites.meta.mutants.order import REVERSED, HandsOutTheNextSubGroup
from zerobench.suites.meta.mutants.overflows import OVERFLOWS
from zerobench.suites.meta.mutants.plain import MUTANTS, RightButSlow, SharesOneStepCount
from zerobench.suites.meta.mutants.rare import RARE
from zerobench.suites.meta.mutants.rare_parts import RARE_PARTS
from zerobench.suites.meta.mutants.recovery import (
    RECOVERY,
    FloorsTheScaleAtOne,
    ForgetsTheStepCountAfterASkip,
    GrowsWithoutRefillingHysteresis,
)
from zerobench.suites.meta.mutants.repeated import REPEATED
from zerobench.suites.meta.mutants.replicas import REPLICAS
from zerobench.suites.meta.mutants.resting_momentum import RESTING
from zerobench.suites.meta.mutants.rules import RULE_MUTANTS
from zerobench.suites.meta.mutants.scheduler import SCHEDULERS
from zerobench.suites.meta.mutants.schedules import SCHEDULED
from zerobench.suites.meta.mutants.seldom_metered import THROUGH_MAPS
from zerobench.suites.meta.mutants.shared import SHARED
from zerobench.suites.meta.mutants.structure import STRUCTURE
from zerobench.suites.meta.mutants.together import TOGETHER
from zerobench.suites.meta.mutants.training_loop import (
    BEFORE_THE_BACKWARD,
    IN_PLACE,
    PARTLY_FROZEN,
    TRAINING_LOOPS,
    ForgetsMomentsOfALongRest,
    LosesAnEditAfterAnother,
)
from zerobench.suites.meta.mutants.two_at_once import OF_RARE_VALUES, ReducesTheLastBucketTwice
from zerobench.suites.meta.mutants.values import VALUE_MUTANTS
from zerobench.suites.meta.mutants.watched import (
    AT_A_MOMENT,
    WATCHED,
    EvaluationMovesTheLossScale,
    LeavesEvaluationMode,
    ReadingStatesForgetsTheStepCount,
    ReadingTheModelEndsTheAccumulation,
    ReadingTwiceMovesParameters,
)
from zerobench.suites.meta.mutants.zeros import ZEROS
from zerobench.suites.meta.power.catching import again, failure_of, first_failure
from zerobench.suites.support.strategies import optimizers, scenarios
from zerobench.suites.support.trials import Trials

#: The properties in the order of the trials; those that catch most mutants come first.
BITS = [
    test_contract.test_equals_the_canonical_trainer,
    test_steps.test_overflow_moves_nothing,
    test_steps.test_dynamic_loss_scale,
    test_contract.test_stages_agree,
    test_turns.test_engines_take_turns,
    test_turns.test_many_steps,
    test_every_engine.test_evaluation_changes_nothing,
    test_every_engine.test_reading_changes_nothing,
]
BYTES = [
    test_traffic.test_traffic_whatever_the_scenario,
    test_memory.test_resident_bytes_whatever_the_scenario,
]
#: The mutants that each property of a history catches.
HISTORY: list[tuple[Any, list[Any]]] = [
    (test_history.test_cost_of_an_evaluation, IN_EVALUATIONS),
    (test_history.test_cost_of_a_skipped_step, IN_SKIPPED_STEPS),
    (test_history.test_a_step_costs_the_same_after_an_evaluation, AROUND_EVALUATIONS),
    (test_history.test_a_step_costs_the_same_after_a_reading, AROUND_READINGS),
    (test_history.test_a_step_costs_the_same_after_a_skipped_step, AROUND_SKIPPED_STEPS),
]
#: Engines with wrong numbers.
WRONG = [
    *MUTANTS,
    *OFFLOAD_MUTANTS,
    *LATE_MUTANTS,
    HandsOutTheNextSubGroup,
    *IGNORED,
    *WATCHED,
    *RECOVERY,
    *RARE,
    *SCHEDULED,
    *RESTING,
    *ZEROS,
    *REPEATED,
    *STRUCTURE,
    *SCHEDULERS,
    *TRAINING_LOOPS,
    *BOUNDARIES,
    *GRADIENT_EDITS,
    *AUTOCAST,
]
#: Those that only few draws catch: over ten seconds on two cores.
LONG = {
    *RARE,
    EvaluationMovesTheLossScale,
    FloorsTheScaleAtOne,
    ForgetsMomentsOfALongRest,
    ForgetsTheStepCountAfterASkip,
    GrowsWithoutRefillingHysteresis,
    LosesAnEditAfterAnother,
    HandsOutTheNextSubGroup,
    IgnoresConsecutiveHysteresis,
    IgnoresLrDecay,
    IgnoresTheStaticScale,
    LeavesEvaluationMode,
    ReadingStatesForgetsTheStepCount,
    ReadingTheModelEndsTheAccumulation,
    ReadingTwiceMovesParameters,
    RefillsHysteresisAlways,
    SharesOneStepCount,
    RightInFiles,
}
#: The command finds another place: the first raises if a run reads more states, and the command reads all; the second
#: computes with memory that has other values each time.
NOT_REPLAYED = [ReadsTheWrongSubGroup, ComputesWithUnitsThatHaveNotArrived]
PROMISES_NOTHING = [test_peers.test_exact_data, test_peers.test_gradients_within_the_bound_of_their_sum]


def _cases(mutants: Iterable[Any]) -> list[Any]:
    """Each mutant with the mark of its turn; the long ones have none in a plain ``pytest``."""
    marks = {True: pytest.mark.slow, False: pytest.mark.rotating}
    return [pytest.param(each, id=each.__name__, marks=marks[each in LONG]) for each in mutants]


def _name(of: Any) -> str:
    """The id of a parameter: a mutant's name; the property needs none."""
    return of.__name__ if isinstance(of, type) else ""


@pytest.mark.parametrize("mutant", _cases(WRONG))
def test_wrong_engine_is_caught(pool: Pool, mutant: Any) -> None:
    """A deliberately wrong engine fails, and the message points at the fault."""
    trials = Trials.of(pool, mutant)
    properties = BITS if mutant.promises_bits else PROMISES_NOTHING
    if "loss_scale" in getattr(mutant.points_at, "parts", ()):
        # It alone draws the rare transitions.
        properties = sorted(properties, key=lambda each: each is not test_steps.test_dynamic_loss_scale)
    failure = first_failure(trials, properties)
    demand_caught(trials, mutant, failure, replayed=mutant not in NOT_REPLAYED)


@pytest.mark.rotating
@pytest.mark.parametrize("mutant", SHARED, ids=lambda mutant: mutant.__name__)
def test_shared_state_is_caught(pool: Pool, mutant: Any) -> None:
    """If engines of one process share a state, one of them fails when they take turns; alone each is right."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, first_failure(trials, [test_turns.test_engines_take_turns], patience=[110]))


@pytest.mark.rotating
@pytest.mark.parametrize("mutant", RULE_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_wrong_rule_is_caught(pool: Pool, mutant: Any) -> None:
    """If an engine steps one optimizer as another, it fails, and after one step the message points at the states of
    that step."""
    trials = Trials.of(pool, mutant)
    one_step = scenarios(steps=1, optimizer=optimizers(name=mutant.rule))
    demand_caught(
        trials,
        mutant,
        failure_of(partial(again(test_contract.test_equals_the_canonical_trainer, 10, one_step), trials)),
    )


@pytest.mark.rotating
@pytest.mark.parametrize(
    "mutant",
    [
        *VALUE_MUTANTS,
        *COUNT_MUTANTS,
        *HUNDREDS,
        *AT_A_MOMENT,
        *DDP,
        *OF_READINGS,
        *OVERFLOWS,
        *INPUTS,
        *OVER_AN_EDIT,
        *RARE_PARTS,
        *IN_PLACE,
        *PARTLY_FROZEN,
        *BEFORE_THE_BACKWARD,
        *REPLICAS,
        *TOGETHER,
        *OF_RARE_VALUES,
    ],
    ids=lambda mutant: mutant.__name__,
)
def test_rare_values_are_caught(pool: Pool, mutant: Any) -> None:
    """If an engine is wrong with a value that no draw has, it fails the Scenario that has the value."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, failure_of(partial(test_rare_values.test_rare_values, trials, mutant.rare)))


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("mutant", "check", "replayed"),
    [
        (AveragesOverEightRanks, test_rare_values.test_nine_ranks, False),  # the pool has four ranks
        (ReducesTheLastBucketTwice, test_rare_values.test_a_large_model, True),
    ],
    ids=_name,
)
def test_a_fault_of_a_size_is_caught(pool: Pool, mutant: Any, check: Any, replayed: bool) -> None:
    """So it does on more ranks than any draw has, and on a model with more gradients than the usual bucket."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, failure_of(partial(check, trials)), replayed=replayed)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_drawn(name: str) -> None:
    """The Scenarios that engines are tried on have every optimizer."""
    assert find(optimizers(), lambda optimizer: optimizer.name == name).name == name


@pytest.mark.rotating
@pytest.mark.parametrize("mutant", SPENDTHRIFTS, ids=lambda mutant: mutant.__name__)
def test_wrong_bytes_are_caught(pool: Pool, mutant: Any) -> None:
    """If an engine has the right bits and wrong bytes, it fails, and the message points at the ledger."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, first_failure(trials, BYTES, patience=[8, 40]))


@pytest.mark.rotating
@pytest.mark.parametrize("mutant", LIMITS, ids=lambda mutant: mutant.__name__)
def test_a_limit_of_one_less_is_caught(pool: Pool, mutant: Any) -> None:
    """If an engine takes a limit for one less, it fails the Scenario whose units fill the limit exactly."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, failure_of(partial(test_traffic.test_traffic, trials, grid.TRAFFIC[mutant.case])))


@pytest.mark.rotating
@pytest.mark.parametrize("mutant", HOARDERS, ids=lambda mutant: mutant.__name__)
def test_hidden_bytes_are_caught(pool: Pool, mutant: Any) -> None:
    """If an engine keeps undeclared bytes, it fails a census of all living tensors."""
    trials = Trials.of(pool, mutant)
    censuses = itertools.product(
        grid.LIVING.values(), (test_memory.test_nothing_is_hidden, test_memory.test_memory_does_not_grow)
    )
    failures = (failure_of(partial(test, trials, each)) for each, test in censuses)
    demand_caught(trials, mutant, next((failure for failure in failures if failure), None))


def test_gradients_that_wait_are_caught(pool: Pool) -> None:
    """If an engine once keeps a whole backward's gradients, it fails, though its bytes between steps are right."""
    mutant = HoldsTheFirstGradients
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, failure_of(partial(test_memory.test_gradients_leave_as_they_are_made, trials, 2)))


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("mutant", "check"), [(mutant, check) for check, mutants in HISTORY for mutant in mutants], ids=_name
)
def test_costs_around_a_step_are_caught(pool: Pool, mutant: Any, check: Any) -> None:
    """If an engine sends or keeps more around an evaluation, a reading or a skipped step, it fails."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, first_failure(trials, [check], patience=[3, 30]))


@pytest.mark.rotating
def test_repeated_gathers_of_a_reading_are_caught(pool: Pool) -> None:
    """If an engine gathers whole units for each parameter that is read, it fails on a model of many parameters."""
    mutant = GathersForEveryParameterRead
    trials = Trials.of(pool, mutant)
    deep = scenarios(model=grid.DEEP, world=2, stage=2, chunk=32, max_live=0, prefetch_bucket=50_000_000)
    check = again(test_history.test_a_step_costs_the_same_after_a_reading, 3, deep)
    demand_caught(trials, mutant, failure_of(partial(check, trials)))


@pytest.mark.rotating
@pytest.mark.parametrize("mutant", GROWING, ids=lambda mutant: mutant.__name__)
def test_slow_growth_is_caught(pool: Pool, mutant: Any) -> None:
    """If an engine grows with evaluations, with skipped steps or seldom, or seldom sends more, it fails a long run."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, failure_of(partial(test_history.test_memory_does_not_grow_in_a_long_run, trials, 1)))


@pytest.mark.rotating
@pytest.mark.parametrize("mutant", HIDING, ids=lambda mutant: mutant.__name__)
def test_memory_beside_tensors_is_caught(pool: Pool, mutant: Any) -> None:
    """If an engine keeps a copy of a state in an array or a byte string, it fails, though no tensor is alive."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, failure_of(partial(test_bounds.test_memory_is_in_tensors, trials, 1, "none")))


@pytest.mark.rotating
@pytest.mark.parametrize("mutant", REPLICATING, ids=lambda mutant: mutant.__name__)
def test_replication_is_caught(pool: Pool, mutant: Any) -> None:
    """If an engine without closed forms replicates a state that the stage shards, it fails."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, failure_of(partial(test_bounds.test_what_the_stage_shards_is_sharded, trials, 3)))


@pytest.mark.rotating
def test_gradients_in_a_private_buffer_are_caught(pool: Pool) -> None:
    """If an engine copies all gradients within a backward, it fails, though ``p.grad`` and the step's end have none."""
    mutant = KeepsGradientsDuringBackward
    trials = Trials.of(pool, mutant)
    check = test_bounds.test_a_backward_holds_its_shard_and_its_buckets
    demand_caught(trials, mutant, failure_of(partial(check, trials, 2, 1)))


@pytest.mark.alone
@pytest.mark.rotating
@pytest.mark.parametrize("mutant", [*WHISPERING, *THROUGH_MAPS], ids=lambda mutant: mutant.__name__)
def test_bytes_outside_collectives_are_caught(pool: Pool, mutant: Any) -> None:
    """If an engine sends its gradients through a store, a socket, a file or a map, it fails, though no collective has
    them."""
    trials = Trials.of(pool, mutant)
    demand_caught(
        trials, mutant, failure_of(partial(test_wire.test_the_wire_carries_little_else, trials, 1, test_wire.LARGE))
    )


def test_wrong_bytes_of_offload_are_caught(pool: Pool) -> None:
    """If an engine moves a gradient twice, it fails, and the message names the gradient's way."""
    trials = Trials.of(pool, CopiesTwice)
    demand_caught(
        trials, CopiesTwice, failure_of(partial(test_offload.test_offload, trials, grid.OFFLOAD["cpu-stage2"]))
    )


@pytest.mark.rotating
@pytest.mark.parametrize("mutant", EDIT_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_lost_edits_are_caught(pool: Pool, mutant: Any) -> None:
    """If an engine writes to a copy of an edited parameter, it fails, and the message says that the edit is lost."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, first_failure(trials, [test_edits.test_edits_persist]))


@pytest.mark.parametrize("right", _cases([RightButSlow, RightInFiles, *REVERSED]))
def test_right_engine_passes(pool: Pool, right: Any) -> None:
    """An engine that is only slow passes; so does one that is only offloaded, or steps its units in reverse."""
    trials = Trials.of(pool, right)
    failure = first_failure(trials, BITS, patience=[4])
    assert not failure, failure
    assert trials.ran >= 4
