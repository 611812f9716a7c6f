"""The module that Python runs first in processes that a job starts, such as ``torchrun train.py`` in a shell script.

They find the stand-in by the path; here the changes of other libraries, such as those for CPU ranks, apply, too.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path


def _run_the_other() -> None:
    """Run the module of this name that this one hides, if the machine or the user has one."""
    own = Path(__file__).parent
    spec = PathFinder.find_spec("sitecustomize", [each for each in sys.path if Path(each) != own])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


try:
    from zerobench.compat.activation import activate
except ImportError:  # another Python, without zerobench
    pass
else:
    activate()
_run_the_other()
