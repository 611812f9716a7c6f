"""Alarms: every property on engines that are right and different, over many seeds."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from zerobench.ranks import Pool
from zerobench.subject import Subject
from zerobench.suites.equivalence import test_contract, test_peers, test_steps, test_turns
from zerobench.suites.meta.mutants.different import DIFFERENT
from zerobench.suites.meta.power import page
from zerobench.suites.meta.power.catching import WEAK, Catching, Check, again
from zerobench.suites.meta.power.runs import PUBLISHED, Run, record, recorded
from zerobench.suites.support import covering
from zerobench.suites.support.trials import Trials, prepare

#: Properties of engines that promise bits.
_STRONG: list[Any] = [
    test_contract.test_equals_the_canonical_trainer,
    test_contract.test_evaluation_sees_the_trained_values,
    test_contract.test_stages_agree,
    test_contract.test_recomputation_and_dropout_agree_across_stages,
    test_contract.test_settings_change_nothing,
    test_contract.test_buckets_that_end_with_a_parameter,
    test_contract.test_world_size_changes_nothing,
    test_contract.test_ranks_hold_the_same_state,
    test_steps.test_clipping,
    test_steps.test_static_loss_scale_changes_nothing,
    test_steps.test_dynamic_loss_scale,
    test_steps.test_overflow_moves_nothing,
    test_turns.test_engines_take_turns,
    test_turns.test_many_steps,
]
#: Properties of every engine that draw its stages together.
_FREE: list[Any] = [
    test_steps.test_parameters_move,
    test_peers.test_gradients_within_the_bound_of_their_sum,
    test_peers.test_error_against_float64,
    test_peers.test_micro_steps_equal_one_large_batch,
    test_peers.test_exact_data,
]
_WORLD = 4


def main(arguments: Sequence[str] | None = None) -> None:
    """Run each engine with each seed that has no record yet, and write the table; end with 1 if a property failed."""
    given = parser().parse_args(arguments)
    prepare()
    known = {(run.engine, run.seed) for run in recorded(given.out)}
    for seed, engine in itertools.product(range(1, given.seeds + 1), DIFFERENT):
        if (engine.__name__, seed) not in known:
            with Pool(_WORLD) as pool:
                run = examine(pool, engine, seed, given.examples)
            record(run, given.out)
            print(f"{run.engine}, seed {run.seed}: {run.scenarios} Scenarios, {run.failure or 'no alarm'}", flush=True)
    page.write()
    raise SystemExit(any(run.failure for run in recorded(given.out)))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="power alarms", description="Try every property on engines that are right.")
    made.add_argument("--seeds", type=int, default=20, metavar="N", help="seeds 1 to N (default: 20)")
    made.add_argument("--examples", type=int, default=2, metavar="N", help="draws of each property (default: 2)")
    made.add_argument("--out", type=Path, default=PUBLISHED, metavar="FILE", help="the record, which is continued")
    return made


def examine(pool: Pool, engine: type[Subject], seed: int, examples: int) -> Run:
    """Every property that applies to the engine, with the draws of a seed."""
    before, covering.SEED = covering.SEED, seed
    try:
        with closing(Trials.of(pool, engine)) as trials:
            catching = Catching(trials)
            found = (catching.failure(test, checks) for test, checks in _checks(engine, examples))
            caught = next((each for each in found if each is not None), None)
            failure = "" if caught is None else f"{caught.property}: {caught.failure}"
            return Run(engine.__name__, seed, examples, catching.scenarios, failure)
    finally:
        covering.SEED = before


def _checks(engine: type[Subject], examples: int) -> Iterator[tuple[Any, Iterator[Check]]]:
    """Each property and its checks."""
    for test in [*(_STRONG if engine.promises_bits else []), *_FREE]:
        yield test, iter([again(test, examples)])
    for test in WEAK:
        yield test, (again(each, examples) for each in test.by_stage)
