"""``python -m zerobench.suites.compat.programs.peer SCRIPT``: run a script on the installed DeepSpeed, also on CPU.

accelerate and transformers get the changes for CPU ranks as under zerobench, and no others: those of stage 3 are of
zerobench's parameters, and DeepSpeed would take every tensor for one of its own. DeepSpeed is told that it has
no compiled operations, so that nothing waits for a compiler: its collectives are gloo's.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

from zerobench.compat.patches.cpu_ranks import PatchesOnImport


def main(arguments: list[str]) -> None:
    """Run the script as ``__main__``."""
    sys.meta_path.insert(0, PatchesOnImport())
    importlib.import_module("deepspeed.ops").__dict__["__compatible_ops__"] = {}
    sys.argv = arguments
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
