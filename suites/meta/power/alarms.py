"""Alarms: every property on engines that are right and different, over many seeds."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib import import_module
from inspect import signature
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from zerobench.ranks import Pool
from zerobench.subject import Subject
from zerobench.suites import equivalence
from zerobench.suites.meta.mutants.different import DIFFERENT
from zerobench.suites.meta.power import journal, page
from zerobench.suites.meta.power.catching import Catching, Check, again
from zerobench.suites.meta.power.runs import PUBLISHED, Run, recorded
from zerobench.suites.support import covering
from zerobench.suites.support.trials import Trials, prepare

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
            journal.add(given.out, run)
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
    """Each property that applies, and its checks: one of all stages if it binds engines that promise bits, which have
    many properties, else one of each stage."""
    for test in drawn_properties():
        fixture = fixture_of(test)
        if fixture == "trials":
            yield test, (again(each, examples) for each in getattr(test, "by_stage", [test]))
        elif fixture == "bits" and engine.promises_bits:
            yield test, iter([again(test, examples)])


def fixture_of(test: Any) -> str:
    """The engines that a property binds: ``trials`` is each, ``bits`` each that promises bits."""
    return next(iter(signature(test.test).parameters))


def drawn_properties() -> list[Any]:
    """The properties of the equivalence suite that draw their Scenarios."""
    names = [each.name for each in iter_modules(equivalence.__path__) if each.name.startswith("test_")]
    modules = [import_module(f"{equivalence.__name__}.{name}") for name in names]
    return [each for module in modules for name, each in vars(module).items() if _is_drawn(name, each)]


def _is_drawn(name: str, value: Any) -> bool:
    return name.startswith("test_") and hasattr(value, "backend")
