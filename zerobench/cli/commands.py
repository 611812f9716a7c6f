"""The command line: ``run`` measures and reports, ``report`` and ``compare`` read, ``gate`` checks against a baseline,
``conform`` holds engines to the equivalence suite, ``replay`` runs a Scenario again, ``checkpoint`` examines and
exports a checkpoint, ``doctor`` examines this machine, ``launch`` runs a DeepSpeed job.

Each command imports its modules when it is chosen: reading results loads neither torch nor an engine.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path

from zerobench.cli import options
from zerobench.cli.messages import complain, reader_gone, say_written
from zerobench.cli.replay_options import replay_command
from zerobench.errors import RankFailure, Unmeasured, UsageError
from zerobench.machine.launch import Launch
from zerobench.results import Json


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code.

    0: all subjects are right; 1: a subject is wrong, failed or was not measured; 2: the input is invalid and nothing
    was done. For ``compare`` and ``gate``: 0: nothing is worse; 1: something is worse; 2: nothing was measured, or less
    than in the base; 3: the input is invalid. 141, as of a shell: the reader of the output has ended.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    with ExitStack() as quiet:
        try:
            launch = Launch.seen()
            if launch and launch.rank:  # rank 0 reports the error
                nowhere = quiet.enter_context(Path(os.devnull).open("w"))
                quiet.enter_context(redirect_stdout(nowhere))
                quiet.enter_context(redirect_stderr(nowhere))
            code = _main(arguments, launch)
            sys.stdout.flush()
            return code
        except _either(UsageError, "ConfigError") as error:
            return complain(str(error), 3 if arguments[:1] in (["compare"], ["conform"], ["gate"]) else 2)
        except Unmeasured as error:
            return complain(str(error), 2)
        except _either(RankFailure, "KernelError", "CheckpointError") as error:
            return complain(str(error), 1)
        except KeyboardInterrupt:
            return complain("interrupted", 130)
        except BrokenPipeError:
            if not reader_gone():
                raise
            return 141


def _either(error: type[Exception], *of_engine: str) -> tuple[type[Exception], ...]:
    """The error, and those of the reference engine if the engine is loaded: otherwise they cannot occur."""
    engine = sys.modules.get("zerobench.engine")
    return (error, *(getattr(engine, each) for each in of_engine)) if engine else (error,)


def _main(arguments: list[str], launch: Launch | None) -> int:
    if os.curdir not in sys.path:
        sys.path.insert(0, os.curdir)  # the search path of a subject given as package.module:Class
    given = options.parser().parse_args(arguments)
    if given.command == "run":
        from zerobench.cli import run

        return run.execute(given, launch, shlex.join(["zerobench", *arguments]))
    if launch:
        raise UsageError(f"{given.command} is the work of one process; run it without a launcher")
    if given.command == "launch":
        from zerobench.compat.launcher.command import execute

        return execute(given, arguments[1 : len(arguments) - 1 - len(given.arguments)])
    return _COMMANDS[given.command](given)


def _report(given: argparse.Namespace) -> int:
    """Merge results and write their report."""
    from zerobench import report
    from zerobench.results.files import read_all

    report.check_possible(given.out)
    report.write(given.out, read_all(given.results))
    say_written(given.out)
    return 0


def _compare(given: argparse.Namespace) -> int:
    """Print the differences between two results."""
    from zerobench.extras import demand_extra

    demand_extra("report")
    from zerobench.report import comparison
    from zerobench.results.comparison import compare

    found = compare(*(_measured(named, given.subject) for named in (given.base, given.head)))
    print(json.dumps(comparison.as_json(found)) + "\n" if given.json else comparison.render(found), end="")
    return found.exit_code


def _measured(named: str, subject: str) -> Json:
    """A file of results, or the results of a subject in the code of a revision."""
    from zerobench.gate import revisions
    from zerobench.results.files import read

    path = Path(named)
    seen = os.access(path, os.F_OK)  # Path.exists raises if access is denied
    return read(path) if seen or path.suffix == ".json" else revisions.measure_revision(Path.cwd(), named, subject)


def _gate(given: argparse.Namespace) -> int:
    from zerobench.extras import demand_extra

    demand_extra("report")
    from zerobench.gate import command

    return command.execute(given)


def _conform(given: argparse.Namespace) -> int:
    from zerobench.conform import command

    return command.execute(given)


def _replay(given: argparse.Namespace) -> int:
    from zerobench.bench.replay import compare_again, known_finding
    from zerobench.machine.products import fix_products

    fix_products()
    command = replay_command(given)
    try:
        found = compare_again(command)
    except RankFailure:
        print(known_finding(command), end="")
        raise
    print(found.text)
    if not found.right:
        print(known_finding(command), end="")
    return 0 if found.right else 1


def _examine(given: argparse.Namespace) -> int:
    from zerobench.cli import doctor, wheels

    if given.wheels:
        print("\n".join(wheels.needed()))
        return 0
    findings = doctor.examine()
    print(json.dumps(findings) if given.json else doctor.render(findings))
    return 1 if findings["problems"] else 0


def _checkpoint(given: argparse.Namespace) -> int:
    from zerobench.cli import checkpoint

    return checkpoint.execute(given)


_COMMANDS = {
    "checkpoint": _checkpoint,
    "replay": _replay,
    "report": _report,
    "compare": _compare,
    "doctor": _examine,
    "conform": _conform,
    "gate": _gate,
}


if __name__ == "__main__":
    sys.exit(main())
