"""Names: none is both a module and a function or class where a reader might take the one for the other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import zerobench

_PACKAGE = Path(zerobench.__file__).parent


def _modules() -> Iterator[tuple[tuple[str, ...], Path]]:
    """Every module of the package by the parts of its name, and its file; the links lead to folders of their own."""
    for folder in (_PACKAGE, *(_PACKAGE / name for name in ("engine", "suites"))):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(_PACKAGE).with_suffix("").parts
            yield ("zerobench", *parts[: -1 if parts[-1] == "__init__" else None]), path


def _defined(path: Path) -> set[str]:
    """The functions and classes of a module; a file of tests or fixtures defines none that others import."""
    if path.name.startswith(("test_", "conftest")):
        return set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_there_are_modules() -> None:
    """Of the package, the engine and the suites."""
    names = {name for name, _ in _modules()}
    assert {("zerobench", "scenario"), ("zerobench", "engine", "layout"), ("zerobench", "suites", "conftest")} <= names


def test_no_name_is_both_a_module_and_a_function() -> None:
    """No module defines its own name, that of a package it lies in, or that of a module beside it."""
    modules = dict(_modules())
    beside: dict[tuple[str, ...], set[str]] = {}
    for name in modules:
        beside.setdefault(name[:-1], set()).add(name[-1])
    twice = {
        ".".join([*name, both])
        for name, path in modules.items()
        for both in _defined(path) & {*name, *beside[name[:-1]], *beside.get(name, set())}
    }
    assert not twice
