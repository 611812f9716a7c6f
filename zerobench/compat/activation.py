"""Activation: the stand-in package ``deepspeed`` first on the path of this process and of its children."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from zerobench.compat.patches import accelerate_launch, lightning, sharded_adapters, sharded_models
from zerobench.compat.patches.cpu_ranks import PatchesOnImport
from zerobench.compat.patches.lookups import watch_lookups
from zerobench.compat.unoffered import find_modules
from zerobench.errors import UsageError

#: The folder of the stand-in and of its metadata.
SITE = Path(__file__).with_name("site")
#: The folder of the module that activates a Python that a program starts.
STARTUP = Path(__file__).with_name("startup")
#: The folder of DeepSpeed's commands.
COMMANDS = Path(__file__).with_name("commands")
#: DeepSpeed's version whose surface this is; a local version compares as not older.
VERSION = "0.19.8+zerobench"

#: The variable with the Python that the commands use.
_PYTHON = "ZEROBENCH_PYTHON"

_PATCHES = {
    **sharded_models.PATCHES,
    **sharded_adapters.PATCHES,
    **lightning.PATCHES,
    **accelerate_launch.PATCHES,
    "torch.nn.functional": watch_lookups,
}


def activate() -> None:
    """Make ``import deepspeed`` find the stand-in, here and in child processes, and patch what is imported later.

    Raises:
        UsageError: another package ``deepspeed`` has been imported.
    """
    loaded = sys.modules.get("deepspeed")
    if loaded is not None and SITE not in Path(loaded.__file__ or "").parents:
        raise UsageError(f"{loaded.__file__} has been imported already; start the script by zerobench launch alone")
    if str(SITE) not in sys.path:  # it is there if this process's parent was activated
        sys.path.insert(0, str(SITE))
        _add_to_path(SITE)
    if not any(isinstance(each, PatchesOnImport) for each in sys.meta_path):
        sys.meta_path.insert(0, PatchesOnImport(_PATCHES))
    find_modules()


def activate_children() -> None:
    """Let every Python that this process's program starts find the stand-in, and patch what is imported there."""
    _add_to_path(SITE, STARTUP)


def _add_to_path(*folders: Path) -> None:
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH")]))


def add_commands() -> None:
    """Let the programs that this process starts find DeepSpeed's commands, such as ``deepspeed``, which are ours."""
    os.environ[_PYTHON] = sys.executable
    if str(COMMANDS) not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join(filter(None, [str(COMMANDS), os.environ.get("PATH")]))
