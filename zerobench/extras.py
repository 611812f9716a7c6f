"""Extras: the optional dependencies of pyproject.toml, and one error that says which to install."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

from zerobench.errors import UsageError

#: The modules of each extra that a user may find missing.
_MODULES = {
    "report": ("jsonschema", "matplotlib", "pandas", "tabulate"),
    "suites": ("hypothesis", "psutil", "pytest_benchmark", "xdist"),
}


@cache
def is_installed(module: str) -> bool:
    """Whether a module can be imported, as it was at the first call."""
    return find_spec(module) is not None


def demand_extra(name: str) -> None:
    """Check that an extra is installed.

    Raises:
        UsageError: if it is not; the message has the command that installs it.
    """
    missing = [module for module in _MODULES[name] if not is_installed(module)]
    if missing:
        raise UsageError(f"not installed: {', '.join(missing)}; python -m pip install 'zerobench[{name}]'")
