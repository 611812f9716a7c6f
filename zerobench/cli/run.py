"""The command ``zerobench run``: measures cases on ranks, then writes and prints their report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import closing, suppress

from zerobench import report
from zerobench.bench.case_json import cases_json
from zerobench.bench.document import all_right, make_document
from zerobench.bench.oracle_runs import OracleRuns
from zerobench.bench.plan import plan_cases
from zerobench.bench.rounds import Bench
from zerobench.cli import options
from zerobench.cli.messages import say_written
from zerobench.errors import UsageError
from zerobench.machine.environment import rank_environment
from zerobench.machine.launch import Launch, threads_each
from zerobench.ranks import Pool, follow, open_pool
from zerobench.results import Json
from zerobench.scenario import Scenario
from zerobench.subjects import load
from zerobench.workload.data import held_out


def execute(given: argparse.Namespace, launch: Launch | None, command: str) -> int:
    """Measure, write the report and print it; returns the exit code."""
    base = options.base_scenario(given, launch)
    for name in given.subjects:
        load(name)
    threads = threads_each(base.world, launch)
    if launch and launch.rank:
        return follow(launch, base.device, threads)
    with open_pool(base.world, base.device, threads, launch) as ranks:  # first: launched ranks end with it
        report.check_possible(given.out)
        held_out(base.but(device="cpu"))  # raises if the text is too short
        for measured in _measure(given, base, ranks, command):
            with suppress(UsageError):  # which the write below raises
                report.keep(given.out, measured)
    try:
        text = report.write(given.out, measured)
    except UsageError:  # such as a full disk: the measurements are not lost
        print(json.dumps(measured))
        raise
    print(json.dumps(measured) if given.json else text)
    say_written(given.out)
    return 0 if all_right(measured) else 1


def _measure(given: argparse.Namespace, base: Scenario, ranks: Pool, command: str) -> Iterator[Json]:
    """The measurements after training, after metering and after judging: if the process ends early, some remain."""
    with closing(_Progress()) as progress:
        cases = plan_cases(base, given.subjects, given.stages, given.offload)
        judged = not (given.times_only or given.unjudged)
        bench = Bench(ranks, cases, given.time_limit, progress, judged=judged)
        progress("starting the ranks")
        environment = ranks.run(rank_environment, world=1)[0]
        bench.train(base.steps)
        peak = bench.peak(base.dtype)

        def so_far(oracle_runs: OracleRuns | None = None) -> Json:
            told = cases_json(bench.results, oracle_runs, options.warmup(base.steps), peak)
            return make_document(told, command, environment, oracle_runs=oracle_runs, peaks=[peak])

        yield so_far()
        if not given.times_only:
            bench.meter()
            yield so_far()
        if judged:
            yield so_far(OracleRuns.of(bench))  # last: the oracles need the most memory


class _Progress:
    """One line on standard error that is overwritten; no output if standard error is not a terminal."""

    def __call__(self, what: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clear the line."""
        self("")
