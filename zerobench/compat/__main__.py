"""``python -m zerobench.compat SCRIPT ARGUMENTS``: run a DeepSpeed script on the reference engine.

A launcher such as torchrun or accelerate starts it on every rank. ``-m MODULE`` in place of a script runs a module, and
``--local-rank`` before it gives the script ``--local_rank=N``, as DeepSpeed's launcher does. ``--command PROGRAM``
starts a program, such as a shell script that calls ``deepspeed``: that command is then ``zerobench launch``, and each
Python that the script starts has the stand-in.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from zerobench.compat.activation import SITE, VERSION, activate, activate_children, add_commands
from zerobench.compat.launcher.cores import bind
from zerobench.compat.launcher.variables import add_variables
from zerobench.errors import UsageError

_USAGE = (
    "usage: python -m zerobench.compat [--local-rank] (SCRIPT | -m MODULE) [ARGUMENTS]\n"
    "       python -m zerobench.compat --command PROGRAM [ARGUMENTS]"
)


def _check_script(name: str, as_module: bool) -> None:
    """Demand that the script exists.

    Raises:
        UsageError: it does not.
    """
    if not as_module and not Path(name).exists():
        raise UsageError(f"there is no script {name!r}; give a file, a module with -m, or a program with --command")


def _run_command(command: list[str]) -> int:
    """Replace this process by a program that finds the stand-in and DeepSpeed's commands."""
    if not command:
        print(_USAGE, file=sys.stderr)
        return 2
    add_commands()
    activate_children()
    try:
        os.execvp(command[0], command)  # noqa: S606  # the caller's own program, without a shell
    except OSError as error:
        print(f"zerobench: {command[0]!r} did not start: {error.strerror}", file=sys.stderr)
        return 127


def main(arguments: list[str]) -> int:
    """Run the script as ``__main__``, with its arguments and its folder as Python gives them."""
    if arguments[:1] == ["--command"]:
        return _run_command(arguments[1:])
    given = arguments[1:] if arguments[:1] == ["--local-rank"] else arguments
    extra = [f"--local_rank={os.environ.get('LOCAL_RANK', '0')}"] if given is not arguments else []
    as_module = given[:1] == ["-m"]
    name, *rest = given[as_module:] or [""]
    if not name:
        print(_USAGE, file=sys.stderr)
        return 2
    try:
        _check_script(name, as_module)
        bind()
        add_variables()
        add_commands()
        activate()
    except UsageError as error:
        print(f"zerobench: {error}", file=sys.stderr)
        return 2
    if os.environ.get("RANK", "0") == "0":
        print(f"zerobench: deepspeed {VERSION} is zerobench's reference engine ({SITE})", flush=True)
    sys.argv = [name, *extra, *rest]
    if as_module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(name).resolve().parent))
        runpy.run_path(name, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
