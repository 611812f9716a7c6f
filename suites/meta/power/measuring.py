"""Measuring: try the historical bugs that have no record yet, and write the page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from zerobench.ranks import Pool
from zerobench.subject import Subject
from zerobench.suites.meta.mutants import unpromised
from zerobench.suites.meta.mutants.historical.bug import BUGS
from zerobench.suites.meta.mutants.historical.catalogue import HISTORICAL
from zerobench.suites.meta.power import page
from zerobench.suites.meta.power.catching import Caught, catch, catch_weakly
from zerobench.suites.meta.power.historical import weakened
from zerobench.suites.meta.power.records import PUBLISHED, Promise, Record, Records
from zerobench.suites.support.trials import Trials, prepare

_WORLD = 4


def main(arguments: Sequence[str] | None = None) -> None:
    """Try what has no record, one engine after another, and write the table."""
    given = parser().parse_args(arguments)
    if not given.page:
        prepare()
        records = Records(given.out)
        weaker = set(weakened())
        for mutant in HISTORICAL:
            for promise in ("bits", "none") if mutant in weaker else ("bits",):
                known = records.of(mutant.__name__, promise) if mutant.__name__ not in given.again else None
                if promise in given.promise and known is None:
                    records.add(_tried(mutant, promise))
    page.write()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="power historical", description="Measure how many Scenarios catch each historical bug."
    )
    made.add_argument("--again", nargs="+", default=[], metavar="MUTANT", help="try these once more")
    made.add_argument("--promise", nargs="+", default=["bits", "none"], choices=["bits", "none"], help="only these")
    made.add_argument("--out", type=Path, default=PUBLISHED, metavar="FILE", help="the record, which is continued")
    made.add_argument("--page", action="store_true", help="try none; write the table of the records")
    return made


def _tried(mutant: type[Subject], promise: Promise) -> Record:
    with Pool(_WORLD) as pool:
        record = Record.of(mutant.__name__, promise, _catch(pool, mutant, promise))
    print(f"{record.mutant}, promise {promise}: {record.property or 'escapes'} {record.scenarios}", flush=True)
    return record


def _catch(pool: Pool, mutant: type[Subject], promise: Promise) -> Caught | None:
    module = mutant.__module__ if promise == "bits" else unpromised.__name__
    with closing(Trials(pool, f"{module}:{mutant.__name__}")) as trials:
        return catch(trials, BUGS[mutant].caught_by) if promise == "bits" else catch_weakly(trials)
