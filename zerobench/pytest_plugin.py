"""The pytest plugin that finds zerobench's suites under the one name that they are imported by.

``pytest suites/equivalence`` in a checkout and ``pytest --pyargs zerobench.suites.equivalence`` anywhere become the
path of the package, so that pytest loads ``suites/conftest.py`` and its options first and no module has two names.
The plugin changes no other run of pytest and does not load torch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from zerobench.errors import UsageError
from zerobench.extras import demand_extra

_PACKAGE = Path(__file__).parent
_NAME = "zerobench.suites"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Replace the arguments that name a suite by its path below the package.

    Raises:
        pytest.UsageError: if a suite is to run and the packages that the suites need are not installed.
    """
    known = early_config.known_args_namespace
    named = known.file_or_dir or early_config.getini("testpaths")
    renamed = {given: found for given in named if (found := _path(given)) is not None}
    if renamed:
        _demand_packages()
        known.file_or_dir[:] = [renamed.get(each, each) for each in known.file_or_dir]
        args[:] = [renamed.get(each, each) for each in args]
        if os.curdir not in sys.path:
            sys.path.insert(0, os.curdir)  # the search path of --subject package.module:Class


def _demand_packages() -> None:
    try:
        demand_extra("suites")
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def _path(given: str) -> str | None:
    """The path below the package if ``given`` names a suite by its module or its path in a checkout, else None."""
    named, separator, test = given.partition("::")
    if named == _NAME or named.startswith(_NAME + "."):
        path = _PACKAGE.joinpath(*named.split(".")[1:])
        path = path if path.is_dir() else path.with_suffix(".py")
        return str(path) + separator + test if path.exists() else None  # otherwise it is the value of --subject
    folder = (_PACKAGE / "suites").resolve()
    path = Path(named).resolve()
    if folder in (path, *path.parents):
        return str(_PACKAGE / "suites" / path.relative_to(folder)) + separator + test
    return None
