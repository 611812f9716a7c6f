"""Checks: the properties of equivalence and accounting, each with the arguments that a mutant is tried on."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import random
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import HypothesisDeprecationWarning, UnsatisfiedAssumption

from zerobench.suites.accounting import (
    test_eventful,
    test_history,
    test_memory,
    test_offload,
    test_sharded,
    test_traffic,
    test_within,
)
from zerobench.suites.equivalence import (
    test_client,
    test_contract,
    test_every_engine,
    test_loads,
    test_neighbours,
    test_own_code,
    test_peers,
    test_resume,
    test_resume_elsewhere,
    test_steps,
    test_turns,
)
from zerobench.suites.meta.automatic.mutated import Kernels
from zerobench.suites.support import covering
from zerobench.suites.support.covering import PECULIAR
from zerobench.suites.support.rare_values import RARE_VALUES
from zerobench.suites.support.rerun import named
from zerobench.suites.support.strategies import models, scenarios
from zerobench.suites.support.trials import Trials

#: Every property that draws, and the number of its arguments; those that kill most mutants come first.
DRAWN: dict[Any, int] = {
    test_contract.test_equals_the_canonical_trainer: 48,
    test_traffic.test_traffic_whatever_the_scenario: 20,
    test_memory.test_resident_bytes_whatever_the_scenario: 12,
    test_offload.test_offload_whatever_the_scenario: 12,
    test_contract.test_lateness_changes_nothing: 20,
    test_steps.test_padding_leaks_nowhere: 16,
    test_steps.test_dynamic_loss_scale: 16,
    test_steps.test_clipping: 8,
    test_sharded.test_peak_of_parameters: 8,
    test_contract.test_evaluation_sees_the_trained_values: 8,
    test_steps.test_overflow_moves_nothing: 8,
    test_contract.test_recomputation_and_dropout_agree_across_stages: 8,
    test_contract.test_stages_agree: 6,
    test_contract.test_settings_change_nothing: 8,
    test_contract.test_world_size_changes_nothing: 6,
    test_contract.test_ranks_hold_the_same_state: 6,
    test_contract.test_buckets_that_end_with_a_parameter: 4,
    test_peers.test_equals_ddp_bitwise: 6,
    test_peers.test_gradients_within_the_bound_of_their_sum: 6,
    test_peers.test_micro_steps_equal_one_large_batch: 4,
    test_peers.test_error_against_float64: 10,
    test_peers.test_exact_data: 6,
    test_steps.test_static_loss_scale_changes_nothing: 6,
    test_steps.test_parameters_move: 4,
    test_resume.test_resume_equals_the_canonical_trainer: 16,
    test_resume.test_load_of_a_part_equals_the_canonical_trainer: 12,
    test_resume.test_resume_of_several_blocks: 2,
    test_resume.test_resume_of_a_dynamic_loss_scale: 4,
    test_resume.test_resume_of_step_counts: 4,
    test_resume.test_resume_elsewhere: 8,
    test_resume.test_resume_at_another_world_size: 8,
    test_resume.test_buffers_at_another_world_size: 4,
    test_resume.test_each_step_follows_over_any_load: 8,
    test_resume_elsewhere.test_each_step_follows_after_a_load: 4,
    test_resume_elsewhere.test_step_counts_follow_after_a_load: 4,
    test_resume_elsewhere.test_each_step_follows_after_two_loads: 4,
    test_resume_elsewhere.test_two_leaves_keep_their_bits: 4,
    test_resume_elsewhere.test_exact_sums_keep_their_bits: 4,
    test_resume_elsewhere.test_settings_are_those_of_the_engine_that_loads: 4,
    test_loads.test_a_load_that_fails_changes_nothing: 12,
    test_loads.test_random_numbers_go_on_after_a_load: 4,
    test_loads.test_a_trained_engine_keeps_what_a_load_leaves_out: 4,
    test_loads.test_a_return_to_an_older_state: 4,
    test_client.test_the_client_keeps_its_state: 6,
    test_client.test_outcomes_need_no_reader: 6,
    test_client.test_saving_changes_nothing: 4,
    test_own_code.test_a_failure_changes_nothing: 4,
    test_own_code.test_a_failed_evaluation_changes_nothing: 2,
    test_own_code.test_inputs_with_gradients_change_nothing: 2,
    test_own_code.test_hooks_of_parameters_hold: 2,
    test_own_code.test_hooks_that_come_late_hold: 3,
    test_own_code.test_calls_within_a_forward: 4,
    test_own_code.test_threads_change_nothing: 2,
    test_own_code.test_a_group_of_other_ranks: 2,
    test_own_code.test_modes_of_the_client_change_nothing: 3,
    test_own_code.test_engines_train_side_by_side: 2,
    test_every_engine.test_reading_changes_nothing: 4,
    test_every_engine.test_engines_share_nothing: 4,
    test_turns.test_engines_take_turns: 6,
    test_turns.test_many_steps: 2,
    test_history.test_a_step_costs_the_same_after_an_evaluation: 2,
    test_history.test_a_step_costs_the_same_after_a_reading: 2,
    test_history.test_a_step_costs_the_same_after_a_save: 2,
    test_history.test_a_step_costs_the_same_after_a_skipped_step: 2,
    test_history.test_cost_of_an_evaluation: 4,
    test_history.test_cost_of_a_skipped_step: 4,
    test_memory.test_nothing_is_hidden_whatever_the_scenario: 4,
    test_eventful.test_a_call_has_its_bounds_in_any_setting: 4,
    test_eventful.test_little_is_undeclared_in_any_setting: 4,
    test_eventful.test_a_step_costs_the_same_whatever_came_before: 4,
    test_eventful.test_a_step_that_does_less_costs_no_more: 4,
}
#: Every property with fixed cases.
FIXED: tuple[Any, ...] = (
    test_memory.test_nothing_is_hidden,
    test_memory.test_memory_does_not_grow,
    test_memory.test_gradients_leave_as_they_are_made,
    test_sharded.test_no_whole_parameter_remains,
    test_sharded.test_the_model_is_never_whole,
    test_offload.test_offload,
    test_offload.test_four_bytes_an_element,
    test_offload.test_buffers_are_bounded,
    test_traffic.test_traffic,
    test_memory.test_resident_bytes,
    test_neighbours.test_torch_is_left_as_it_was,
    test_contract.test_late_writes_of_an_edit,
    test_contract.test_an_edit_reaches_every_store,
    test_history.test_an_evaluation_between_micro_steps_leaves_nothing,
    test_history.test_gradients_wait_no_longer_after_a_call,
    test_history.test_a_further_forward_costs_what_an_evaluation_does,
    test_history.test_a_short_step_costs_as_much_as_its_micro_steps,
    test_history.test_a_step_in_which_a_block_rests_costs_no_more,
    test_history.test_memory_does_not_grow_in_a_long_run,
    test_within.test_an_update_holds_its_shard,
    test_within.test_an_update_copies_no_states,
    test_within.test_a_save_and_a_load_hold_little,
    test_within.test_a_step_holds_nothing_of_the_calls_before,
    test_within.test_an_update_holds_nothing_of_a_reading,
    test_within.test_events_leave_little,
    test_within.test_an_edit_holds_few_blocks,
    test_within.test_building_holds_few_blocks,
    test_within.test_a_forward_holds_few_blocks,
    test_within.test_a_reading_holds_what_it_returns,
    test_within.test_loads_and_edits_receive_little,
    test_within.test_a_saved_state_has_each_state_once,
    test_within.test_a_load_of_other_ranks_receives_little,
    test_within.test_nothing_is_left_of_a_closed_engine,
    test_within.test_nothing_is_left_of_forwards_that_raise,
    test_within.test_files_have_what_is_declared,
)
_WIRE = "needs a machine on which nothing else uses the network"
_WEAKER = "binds every engine; an engine that promises the contract's bits is held to more"
_CLOSED = "a bound for every engine; the closed forms of memory and traffic hold the reference engine to more"
#: The properties that are no checks, each with its reason.
LEFT_OUT: dict[str, str] = {
    "test_logical_bytes_are_on_the_wire": _WIRE,
    "test_the_wire_carries_little_else": _WIRE,
    "test_building_and_saving_receive_little": _WIRE,
    "test_known_finding_is_there": "of engines that are wrong in a known way",
    "test_nine_ranks": "needs more ranks than a pool of mutants has",
    "test_a_large_model": "its model takes long; other properties have the sizes of buckets that a Scenario gives",
    "test_a_dynamic_loss_scale_follows_after_a_load": _WEAKER,
    "test_a_block_that_rests": _WEAKER,
    "test_buckets_that_end_with_a_parameter_follow": _WEAKER,
    "test_building_is_inert": _WEAKER,
    "test_dynamic_loss_scale_follows": _WEAKER,
    "test_dynamic_scale_equals_static": _WEAKER,
    "test_each_step_follows_between_readings": _WEAKER,
    "test_each_step_follows_from_the_one_before": _WEAKER,
    "test_evaluation_changes_nothing": _WEAKER,
    "test_exact_steps": _WEAKER,
    "test_one_reduction_follows": _WEAKER,
    "test_overflow_on_one_rank": _WEAKER,
    "test_ranks_agree": _WEAKER,
    "test_ranks_agree_on_overflow": _WEAKER,
    "test_reading_gradients_changes_nothing": _WEAKER,
    "test_resume_changes_nothing": _WEAKER,
    "test_static_scale_changes_nothing": _WEAKER,
    "test_sums_in_fp32_follow": _WEAKER,
    "test_a_backward_frees_what_it_computes_again": _CLOSED,
    "test_a_backward_holds_its_shard_and_its_buckets": _CLOSED,
    "test_an_evaluation_holds_few_blocks": _CLOSED,
    "test_calls_between_steps_write_nothing": "counts all that a process writes, and other threads of it write, too",
    "test_an_update_in_16_bits_holds_its_shard": _CLOSED,
    "test_little_is_undeclared": _CLOSED,
    "test_memory_is_in_tensors": _CLOSED,
    "test_what_is_sent_is_received": _CLOSED,
    "test_what_the_stage_shards_is_sharded": _CLOSED,
}
#: The number of checks that run again on the definitions.
_ON_DEFINITIONS = 100
#: The number of arguments of each peculiarity of a model.
_PECULIAR = 3


@dataclass(frozen=True)
class Check:
    """One property with one argument; ``arguments`` are those of the test, besides the engine."""

    name: str
    test: Any
    arguments: dict[str, Any]
    kernels: Kernels = "native"

    @property
    def key(self) -> str:
        """A digest of the property, its argument and the kernels."""
        named = "" if self.kernels == "native" else f" {self.kernels}"
        return hashlib.sha256(f"{self.name} {self.arguments!r}{named}".encode()).hexdigest()[:16]

    def applies(self, trials: Trials) -> bool:
        """Run it; False if the property does not apply to its argument.

        Raises:
            Exception: the engine does not have the property.
        """
        engine = next(iter(inspect.signature(self.test).parameters))
        try:
            with warnings.catch_warnings(), named(self.test):
                warnings.simplefilter("ignore", HypothesisDeprecationWarning)
                self.test(**{engine: trials}, **self.arguments)
        except (UnsatisfiedAssumption, pytest.skip.Exception):
            return False
        return True


def all_checks(count: int | None = None) -> list[Check]:
    """The first ``count`` checks, or all, the same ones each time; those of each property are spread evenly.

    At the end are some of them again, for the definitions of the kernels in torch.
    """
    drawn = [[*_drawn(test, count)] for test, count in DRAWN.items()]
    peculiar = [[*_peculiar(each)] for each in PECULIAR]
    fixed = [[*_fixed(test)] for test in FIXED] + [[*_rare()]]
    spread = [((k + 0.5) / len(group), check) for group in (*drawn, *fixed, *peculiar) for k, check in enumerate(group)]
    native = [check for _, check in sorted(spread, key=lambda each: each[0])][:count]
    return [*native, *(replace(check, kernels="torch") for check in native[:_ON_DEFINITIONS])]


def _drawn(test: Any, count: int) -> Iterator[Check]:
    for scenario in draw(test.strategy, count, test.backend):
        yield Check(test.__name__, test.test, {"scenario": scenario})


def _peculiar(flag: str) -> Iterator[Check]:
    """The body of ``test_peculiar_parameters`` is that of the contract, on models with this peculiarity."""
    main: Any = test_contract.test_equals_the_canonical_trainer
    for scenario in draw(scenarios(model=models(**{flag: True})), _PECULIAR, covering.backend(flag)):
        yield Check(f"test_peculiar_parameters[{flag}]", main.test, {"scenario": scenario})


def _rare() -> Iterator[Check]:
    """The body of ``test_rare_values`` is that of the contract; each value at one stage, the stages in turn. If it
    offloads parameters, the stage is 3: the others have no shards of them."""
    main: Any = test_contract.test_equals_the_canonical_trainer
    for number, (name, scenario) in enumerate(RARE_VALUES.items()):
        stage = number % 4 if scenario.offload_param == "none" else 3
        yield Check(f"test_rare_values[{name}]", main.test, {"scenario": scenario.but(stage=stage)})


def _fixed(test: Any) -> Iterator[Check]:
    marks = [mark for mark in test.pytestmark if mark.name == "parametrize"]
    cases = [*itertools.product(*([*_arguments(*mark.args)] for mark in marks))]
    random.Random(0).shuffle(cases)  # noqa: S311 - like cases are neighbours, and a session may try the first ones alone
    for case in cases:
        yield Check(test.__name__, test, {name: value for arguments in case for name, value in arguments.items()})


def _arguments(names: str | tuple[str, ...], cases: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """The arguments of each case of one ``parametrize``."""
    for case in cases:
        yield {names: case} if isinstance(names, str) else dict(zip(names, case, strict=True))


def draw(strategy: Any, count: int, backend: str) -> list[Any]:
    """The first ``count`` values that a property draws."""
    values: list[Any] = []

    @settings(
        max_examples=count,
        backend=backend,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: Any) -> None:
        values.append(value)
        covering.count_row()

    collect()
    return values
