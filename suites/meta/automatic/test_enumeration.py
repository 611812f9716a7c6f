"""The mutants: enough of them, each one valid Python with one edit, and none where nothing is judged."""

from __future__ import annotations

import ast

import pytest

from zerobench.suites.meta.automatic.enumeration import ENGINE, files, mutations, of_source
from zerobench.suites.meta.automatic.exclusions import FILES
from zerobench.suites.meta.automatic.operators import OPERATORS
from zerobench.suites.meta.automatic.session import select


def _edits(text: str, operator: str) -> list[str]:
    return [each.after for each in of_source("a.py", text.encode()) if each.operator == operator]


@pytest.mark.parametrize(
    ("operator", "text", "edits"),
    [
        ("arithmetic", "x = a + b", ["(a - b)"]),
        ("arithmetic", "x = -a", ["(a)"]),
        ("arithmetic", "x += a", ["x -= a"]),
        ("comparison", "x = a < b", ["(a <= b)", "(a >= b)"]),
        ("comparison", "x = a is None", ["(a is not None)"]),
        ("boolean", "x = a and not b", ["(a or not b)", "(b)"]),
        ("condition", "x = [a for a in b if a]", ["True", "False"]),
        ("condition", "while a:\n    b()", ["True", "False"]),
        ("index", "x = a[i]", ["(a[i + 1])"]),
        ("index", "x = a[b:]", ["(a[b + 1:])", "(a[:])"]),
        ("constant", "x = f(0, 1.5, True)", ["1", "3.0", "False"]),
        ("call", "x = min(a, b)", ["(max(a, b))"]),
        ("statement", "a.b = c\nd(e)\nf = g", ["pass", "pass"]),
        ("result", "def f():\n    return a", ["return None"]),
    ],
)
def test_operator(operator: str, text: str, edits: list[str]) -> None:
    """Each operator makes the edits that its docstring names."""
    assert _edits(text, operator) == edits


@pytest.mark.parametrize(
    "text",
    [
        '"""Docstring."""',
        "raise E(1 + 1)",
        "if a < 1:\n    raise E",
        "x = f'{a + 1}'",
        "def f(a: X[1]) -> Y[0]: ...",
        "class C(Section):\n    a: int = 1",
        "def __repr__(self):\n    return a + b",
    ],
)
def test_left_out(text: str) -> None:
    """Refusals, messages, annotations and a section's defaults have no mutants."""
    assert list(of_source("a.py", text.encode())) == []


def test_there_are_a_thousand() -> None:
    """The engine has more than a thousand mutants, of every operator and every file that is not left out."""
    every = mutations()
    assert len(every) >= 1000
    assert len({each.id for each in every}) == len(every)
    assert {each.operator for each in every} == set(OPERATORS)
    large = {file for file in files() if (ENGINE / file).stat().st_size > 2000}
    assert {each.file for each in every} >= large


def test_files_left_out_exist() -> None:
    """The list names files of the engine."""
    assert [file for file in FILES if not (ENGINE / file).exists()] == []


def test_mutants_are_python() -> None:
    """Every twentieth mutant parses, to another tree than the engine's."""
    for each in mutations()[::20]:
        original = (ENGINE / each.file).read_bytes()
        assert ast.dump(ast.parse(each.source())) != ast.dump(ast.parse(original)), each


def test_a_sample_depends_on_its_seed_alone() -> None:
    """A larger sample begins with a smaller one."""
    every = mutations()
    assert select(every[::-1], 20, 7, ["*"])[:10] == select(every, 10, 7, ["*"])
    assert select(every, 10, 8, ["*"]) != select(every, 10, 7, ["*"])
