"""A session: tries all mutants or a sample, goes on where the last one ended, and writes the report."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import torch

from zerobench.suites.meta.automatic import report
from zerobench.suites.meta.automatic.checks import all_checks
from zerobench.suites.meta.automatic.enumeration import Mutation, mutations
from zerobench.suites.meta.automatic.mutated import preload_ranks
from zerobench.suites.meta.automatic.reach import reached
from zerobench.suites.meta.automatic.remembering import oracles_remember
from zerobench.suites.meta.automatic.results import Results
from zerobench.suites.meta.automatic.trying import try_out

_CLEAR = "\r\x1b[2K"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the session that the command line describes."""
    given = parser().parse_args(arguments)
    if given.list:
        print("\n".join(f"{each.id} line {each.line}: {each.before} -> {each.after}" for each in mutations()))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    results, everything = Results(given.out), list(mutations())
    if not given.report:
        torch.set_num_threads(1)  # as the ranks have
        preload_ranks()
        chosen = select(everything, given.sample, given.seed, given.only)
        todo = [each for each in chosen if _is_open(each, results, again=given.again)]
        _try_all(todo, given.checks, results, given.out)
    current = results.current(everything)
    results.keep(current)
    total = report.write(given.out, everything, current)
    print(f"{total.tried} of {total.mutants} mutants tried, {total.killed} killed: {given.out / 'report.md'}")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="mutants", description="Try the suites on mutants of the engine.")
    made.add_argument("--sample", type=int, metavar="N", help="try N mutants, those of a smaller N first")
    made.add_argument("--seed", type=int, default=0, help="of the sample (default: 0)")
    made.add_argument("--only", nargs="+", default=["*"], metavar="ID", help="try these mutants, such as 'layout.py:*'")
    made.add_argument("--checks", type=int, metavar="N", help="try each on the first N checks alone (default: all)")
    made.add_argument("--again", action="store_true", help="try survivors of earlier sessions again")
    made.add_argument("--out", type=Path, default=Path("zerobench-mutants"), metavar="DIR", help="the results' folder")
    made.add_argument("--report", action="store_true", help="try none; write the report of the results")
    made.add_argument("--list", action="store_true", help="try none; list every mutant")
    return made


def select(everything: Sequence[Mutation], sample: int | None, seed: int, only: Sequence[str]) -> list[Mutation]:
    """The mutants of a session, in an order that depends on the seed and their ids, so that it outlasts other edits."""
    order = sorted(everything, key=lambda each: hashlib.sha256(f"{seed} {each.id}".encode()).digest())
    return [each for each in order[:sample] if any(fnmatchcase(each.id, pattern) for pattern in only)]


def _try_all(todo: Sequence[Mutation], count: int | None, results: Results, folder: Path) -> None:
    if not todo:
        return
    tell = _teller()
    applicable, known = reached(all_checks(count), folder, tell)
    with oracles_remember():
        for place, mutation in enumerate(todo, 1):
            tell(f"{place} of {len(todo)}: {mutation.id}")
            results.add(try_out(mutation, known.of(mutation, applicable)))
    tell("")


def _is_open(mutation: Mutation, results: Results, *, again: bool) -> bool:
    known = results.of(mutation)
    return known is None or (again and known.status != "killed")


def _teller() -> Callable[[str], None]:
    """Shows the progress in one line of a terminal; silent elsewhere."""
    if not sys.stderr.isatty():
        return lambda line: None
    return lambda line: print(f"{_CLEAR}{line}", end="", file=sys.stderr, flush=True)
