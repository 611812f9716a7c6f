"""The checks: every property of equivalence and accounting is one, or has a reason why it is none."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

from zerobench.suites import accounting, equivalence
from zerobench.suites.meta.automatic.checks import DRAWN, FIXED, LEFT_OUT, all_checks

#: The properties whose bodies are that of another one, on models or Scenarios of their own.
_BY_NAME = {"test_peculiar_parameters", "test_rare_values"}


def _properties() -> Iterator[str]:
    for folder in (accounting, equivalence):
        for found in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
            module = importlib.import_module(found.name)
            tests = {name: each for name, each in vars(module).items() if name.startswith("test_") and callable(each)}
            yield from (name for name, each in tests.items() if each.__module__ == found.name)


def test_no_property_is_forgotten() -> None:
    """A new property is a check, or ``LEFT_OUT`` says why it is none."""
    checked = {test.__name__ for test in (*DRAWN, *FIXED)} | _BY_NAME
    assert not checked & LEFT_OUT.keys()
    assert set(_properties()) == checked | LEFT_OUT.keys()


@pytest.mark.slow
def test_each_property_has_checks() -> None:
    """Each of them is tried on at least one argument, at its first stage or at another."""
    tried = {check.name.partition("[")[0] for check in all_checks()}
    assert tried == {test.__name__ for test in (*DRAWN, *FIXED)} | _BY_NAME
