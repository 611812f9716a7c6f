"""The page on the suite's power counts the wrong engines that there are."""

from __future__ import annotations

import importlib
import re
from typing import Any

from zerobench.suites.meta import test_client_mutants, test_mutants, test_within_mutants, test_wrong_resumes
from zerobench.suites.project.docs.pages import read


def _registered() -> list[Any]:
    """Every wrong engine that a test of the meta suite tries."""
    modules = (test_mutants, test_wrong_resumes, test_client_mutants, test_within_mutants)
    names = {(each, name): value for each in modules for name, value in vars(each).items()}
    lists = [value for (_, name), value in names.items() if name.isupper() and isinstance(value, list)]
    found = [each for each in _flat(lists) if isinstance(each, type) and hasattr(each, "points_at")]
    return [
        *found,
        *(each for each in names.values() if isinstance(each, type) and hasattr(each, "points_at")),
    ]


def _flat(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        return [value]
    return [each for item in value for each in _flat(item)]


def test_table_of_wrong_engines() -> None:
    """The numbers are those of the modules, and every engine is registered."""
    rows = re.findall(r"^\| .* \| ((?:`\w+`(?:, )?)+) \| (\d+) \|$", read("docs/reference/power.md"), re.MULTILINE)
    assert rows
    registered = set(_registered())
    for modules, count in rows:
        named = [
            importlib.import_module(f"zerobench.suites.meta.mutants.{name}") for name in re.findall(r"\w+", modules)
        ]
        assert len({each for each in registered if each.__module__ in [module.__name__ for module in named]}) == int(
            count
        ), modules
