"""The command line: ``run`` measures and reports, ``report`` and ``compare`` read, ``gate`` holds to a baseline,
``replay`` runs a Scenario again, ``doctor`` says what this machine has."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing, redirect_stderr, redirect_stdout
from pathlib import Path

from zerobench import ConfigError, KernelError, report
from zerobench.bench.oracle_runs import Trial
from zerobench.bench.rank_tasks import surroundings
from zerobench.bench.replay import replay
from zerobench.bench.rounds import Bench, rows
from zerobench.cli import doctor, options
from zerobench.errors import RankFailure, Unmeasured, UsageError
from zerobench.gate import revisions
from zerobench.gate.command import gate
from zerobench.ranks import Launch, Pool, follow, pool, threads_each
from zerobench.results.comparison import compare
from zerobench.results.document import Json, all_right, document, rows_of
from zerobench.results.load import load, read
from zerobench.scenario import Scenario
from zerobench.subjects import load as load_subject
from zerobench.workload.data import held_out


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code.

    0: all is right; 1: a subject is wrong, failed or was not measured; 2: the input cannot be, and nothing was done.
    Of ``compare`` and ``gate``: 0: nothing is worse; 1: something is; 2: nothing, or less, was measured; 3: the input
    cannot be.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    with ExitStack() as quiet:
        try:
            launch = Launch.seen()
            if launch and launch.rank:  # what is wrong with the input, rank 0 says
                nowhere = quiet.enter_context(Path(os.devnull).open("w"))
                quiet.enter_context(redirect_stdout(nowhere))
                quiet.enter_context(redirect_stderr(nowhere))
            return _main(arguments, launch)
        except (UsageError, ConfigError) as error:
            return _complain(str(error), 3 if arguments[:1] in (["compare"], ["gate"]) else 2)
        except Unmeasured as error:
            return _complain(str(error), 2)
        except (RankFailure, KernelError) as error:
            return _complain(str(error), 1)
        except KeyboardInterrupt:
            return _complain("interrupted", 130)


def _main(arguments: list[str], launch: Launch | None) -> int:
    if os.curdir not in sys.path:
        sys.path.insert(0, os.curdir)  # where package.module:Class of a subject is looked for
    given = options.parser().parse_args(arguments)
    if given.command == "run":
        return _run(given, launch, shlex.join(["zerobench", *arguments]))
    if launch:
        raise UsageError(f"{given.command} is the work of one process; run it without a launcher")
    return _COMMANDS[given.command](given)


def _complain(what: str, code: int) -> int:
    print(f"zerobench: {what}", file=sys.stderr)
    return code


def _run(given: argparse.Namespace, launch: Launch | None, command: str) -> int:
    """Measure, print and write the report."""
    base = options.base_scenario(given, launch)
    for name in given.subjects:
        load_subject(name)
    threads = threads_each(base.world, launch)
    if launch and launch.rank:
        return follow(launch, base.device, threads)
    with pool(base.world, base.device, threads, launch) as ranks:  # first: launched ranks end with it, come what may
        report.writable(given.out)
        held_out(base.but(device="cpu"))  # whether there is text enough
        measured = _measure(given, base, ranks, command)
    try:
        text = report.write(given.out, measured)
    except UsageError:  # such as a full disk, with which what was measured is not lost
        print(json.dumps(measured))
        raise
    print(json.dumps(measured) if given.json else text)
    _say_written(given.out)
    return 0 if all_right(measured) else 1


def _say_written(directory: Path) -> None:
    *names, last = (str(directory / name) for name in report.FILES)
    print(f"zerobench: wrote {', '.join(names)} and {last}", file=sys.stderr)


def _report(given: argparse.Namespace) -> int:
    """Merge results and write their report."""
    report.write(given.out, load(given.results))
    _say_written(given.out)
    return 0


def _compare(given: argparse.Namespace) -> int:
    """Print what differs between two results."""
    from zerobench.report import comparison

    found = compare(*(_measured(named, given.subject) for named in (given.base, given.head)))
    print(json.dumps(comparison.as_json(found)) + "\n" if given.json else comparison.render(found), end="")
    return found.exit_code


def _measured(named: str, subject: str) -> Json:
    """A file of results, or what a subject comes to in the code of a revision."""
    path = Path(named)
    seen = os.access(path, os.F_OK)  # Path.exists raises where nobody may look
    return read(path) if seen or path.suffix == ".json" else revisions.results(Path.cwd(), named, subject)


def _measure(given: argparse.Namespace, base: Scenario, ranks: Pool, command: str) -> Json:
    with closing(_Progress()) as progress:
        bench = Bench(ranks, rows(base, given.subjects, given.stages, given.offload), given.time_limit, progress)
        progress("starting the ranks")
        where = ranks.run(surroundings, world=1)[0]
        bench.train(base.steps)
        if given.times_only:
            trial = None
        else:
            bench.meter()
            trial = Trial.of(bench)  # last, for it takes most memory of all
        peak = bench.peak(base.dtype)
        progress("writing the report")
        measured = rows_of(bench.rows, trial, options.warmup(base.steps), peak)
        return document(measured, command, where, trial=trial, peaks=[peak])


def _replay(given: argparse.Namespace) -> int:
    verdict = replay(given.scenario, given.subject)
    if isinstance(verdict, str):
        print(f"{given.subject} does not offer this Scenario: {verdict}")
        return 0
    print(verdict)
    return 0 if verdict.right else 1


def _examine(given: argparse.Namespace) -> int:
    findings = doctor.examine()
    print(json.dumps(findings) if given.json else doctor.render(findings))
    return 1 if findings["problems"] else 0


_COMMANDS = {"replay": _replay, "report": _report, "compare": _compare, "doctor": _examine, "gate": gate}


class _Progress:
    """One line on standard error that is written over; nothing where that is no terminal."""

    def __call__(self, what: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clear the line."""
        self("")


if __name__ == "__main__":
    sys.exit(main())
