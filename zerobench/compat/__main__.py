"""``python -m zerobench.compat SCRIPT ARGUMENTS``: run a DeepSpeed script on the reference engine.

A launcher such as torchrun or accelerate starts it on every rank; ``-m MODULE`` in place of a script runs a module.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from zerobench.compat.activation import SITE, VERSION, activate
from zerobench.errors import UsageError


def main(arguments: list[str]) -> int:
    """Run the script as ``__main__``, with its arguments and its folder as Python gives them."""
    if not arguments or arguments == ["-m"]:
        print("usage: python -m zerobench.compat (SCRIPT | -m MODULE) [ARGUMENTS]", file=sys.stderr)
        return 2
    try:
        activate()
    except UsageError as error:
        print(f"zerobench: {error}", file=sys.stderr)
        return 2
    if os.environ.get("RANK", "0") == "0":
        print(f"zerobench: deepspeed {VERSION} is zerobench's reference engine ({SITE})", flush=True)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
