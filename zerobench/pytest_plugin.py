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

_PACKAGE = Path(__file__).parent
_NAME = "zerobench.suites"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Replace what names a suite by its path below the package."""
    known = early_config.known_args_namespace
    renamed = {given: found for given in known.file_or_dir if (found := _path(given)) is not None}
    if renamed:
        known.file_or_dir[:] = [renamed.get(each, each) for each in known.file_or_dir]
        args[:] = [renamed.get(each, each) for each in args]
        if os.curdir not in sys.path:
            sys.path.insert(0, os.curdir)  # --subject package.module:Class is looked for here


def _path(given: str) -> str | None:
    """The path below the package of what names a suite, by its module or by its path in a checkout; else None."""
    named, separator, test = given.partition("::")
    if named == _NAME or named.startswith(_NAME + "."):
        path = _PACKAGE.joinpath(*named.split(".")[1:])
        path = path if path.is_dir() else path.with_suffix(".py")
        return str(path) + separator + test if path.exists() else None  # else it is the value of --subject
    folder = (_PACKAGE / "suites").resolve()
    path = Path(named).resolve()
    if folder in (path, *path.parents):
        return str(_PACKAGE / "suites" / path.relative_to(folder)) + separator + test
    return None
