"""``python -m zerobench.compat SCRIPT ARGUMENTS``: run a DeepSpeed script on the reference engine.

A launcher such as torchrun or accelerate starts it on every rank. ``-m MODULE`` in place of a script runs a module, and
``--local-rank`` before it gives the script ``--local_rank=N``, as DeepSpeed's launcher does.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from zerobench.compat.activation import SITE, VERSION, activate
from zerobench.compat.launcher.cores import bind
from zerobench.compat.launcher.variables import add_variables
from zerobench.errors import UsageError


def main(arguments: list[str]) -> int:
    """Run the script as ``__main__``, with its arguments and its folder as Python gives them."""
    given = arguments[1:] if arguments[:1] == ["--local-rank"] else arguments
    extra = [f"--local_rank={os.environ.get('LOCAL_RANK', '0')}"] if given is not arguments else []
    as_module = given[:1] == ["-m"]
    name, *rest = given[as_module:] or [""]
    if not name:
        print("usage: python -m zerobench.compat [--local-rank] (SCRIPT | -m MODULE) [ARGUMENTS]", file=sys.stderr)
        return 2
    try:
        bind()
        add_variables()
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
