"""``python -m zerobench.suites.bench.checkpoint``: measure checkpoints beside plain files, and write the report."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from zerobench.machine.environment import rank_environment
from zerobench.machine.files import write_together
from zerobench.machine.launch import threads_each
from zerobench.ranks import Pool
from zerobench.scenario import Scenario
from zerobench.suites.bench.checkpoint.measuring import Measured, measure
from zerobench.suites.bench.checkpoint.page import render
from zerobench.workload.sizes import SIZES

#: Seconds for all rounds.
_LIMIT = 3600.0


def main(arguments: list[str] | None = None) -> int:
    """Measure, write ``report.md`` and ``results.json``, and return 0."""
    given = parser().parse_args(arguments)
    scenario = Scenario(model=SIZES[given.model], world=given.ranks, stage=2, dtype="bf16", micro_batch=1, data="text")
    with Pool(given.ranks, threads=threads_each(given.ranks)) as pool, _directory(given.disk) as directory:
        environment = pool.run(rank_environment, world=1)[0]
        ranks = pool.run(measure, scenario, Path(directory), given.rounds, timeout=_LIMIT)
    found = {"environment": environment, "model": given.model, "world": given.ranks, **_together(ranks)}
    write_together(given.out, {"results.json": json.dumps(found, indent=1) + "\n", "report.md": render(found)})
    print(f"{given.out / 'report.md'}: {given.rounds} rounds")
    return 0


def _together(ranks: list[Measured]) -> dict[str, object]:
    """The ranks' numbers as one: their seconds are equal, and the largest shard and peak count."""
    names = ranks[0].peaks
    return {
        "bytes": max(each.bytes for each in ranks),
        "seconds": ranks[0].seconds,
        "peaks": {name: max(each.peaks[name] for each in ranks) for name in names},
    }


def _directory(disk: Path) -> tempfile.TemporaryDirectory[str]:
    disk.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix=".zerobench-", dir=disk)


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(prog="python -m zerobench.suites.bench.checkpoint", description=__doc__)
    options.add_argument("--out", type=Path, default=Path("zerobench-checkpoint"), help="default: zerobench-checkpoint")
    options.add_argument("--disk", type=Path, default=Path(), help="a directory on the disk; default: this one")
    options.add_argument("--model", choices=list(SIZES), default="small", help="default: small, 25 million parameters")
    options.add_argument("--ranks", type=int, default=2, help="default: 2")
    options.add_argument("--rounds", type=int, default=15, help="default: 15")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
