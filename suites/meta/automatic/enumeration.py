"""Enumeration: every mutant of the engine, in the order of the files and of their lines."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import zerobench
from zerobench.suites.meta.automatic.exclusions import FILES, children, left_out
from zerobench.suites.meta.automatic.operators import OPERATORS

#: The folder of the engine as Python imports it.
ENGINE = Path(zerobench.__file__).parent / "engine"


@dataclass(frozen=True)
class Mutation:
    """One edit: bytes ``[start, stop)`` of a file become ``after``. ``id`` names it as long as its function stays."""

    file: str  # from the engine's folder
    function: str
    operator: str
    number: int  # among the edits of this operator in this function
    line: int
    first: int  # the line at which its statement begins
    last: int
    start: int
    stop: int
    before: str
    after: str
    scope: str  # the digest of its function

    @property
    def id(self) -> str:
        """File, function, operator and number."""
        return f"{self.file}:{self.function}:{self.operator}:{self.number}"

    @property
    def module(self) -> str:
        """The name by which Python imports the file."""
        parts = Path(self.file).with_suffix("").parts
        return ".".join(("zerobench.engine", *(part for part in parts if part != "__init__")))

    def source(self) -> bytes:
        """The file's text with the edit."""
        original = read(self.file)
        return original[: self.start] + self.after.encode() + original[self.stop :]

    def is_reached_by(self, lines: frozenset[int]) -> bool:
        """Whether a run of these lines of the file has run the edited code."""
        return self.first in lines or any(line in lines for line in range(self.line, self.last + 1))


@cache
def read(file: str) -> bytes:
    """The text of a file of the engine."""
    return (ENGINE / file).read_bytes()


def digest(text: bytes) -> str:
    """The first 16 digits of a text's SHA-256."""
    return hashlib.sha256(text).hexdigest()[:16]


def files() -> list[str]:
    """The files that have mutants."""
    found = (path.relative_to(ENGINE).as_posix() for path in ENGINE.rglob("*.py"))
    return sorted(file for file in found if not _is_left_out(file))


def _is_left_out(file: str) -> bool:
    """Whether the list names the file or its folder."""
    return any(file == each or (each.endswith("/") and file.startswith(each)) for each in FILES)


@cache
def mutations() -> tuple[Mutation, ...]:
    """Every mutant, by file and line."""
    return tuple(mutation for file in files() for mutation in of_source(file, read(file)))


def of_source(file: str, source: bytes) -> Iterator[Mutation]:
    """The mutants of one file; an edit that leaves the tree as it was is none."""
    numbers: Counter[tuple[str, str]] = Counter()
    starts = _starts(source)
    tree = ast.parse(source)
    for function, scope, place, node in _nodes(tree, "module", tree, None):
        for operator, edits in OPERATORS.items():
            for edited, after in edits(node):
                assert isinstance(edited, ast.expr | ast.stmt)
                start = starts[edited.lineno - 1] + edited.col_offset
                stop = starts[(edited.end_lineno or 0) - 1] + (edited.end_col_offset or 0)
                before, first = source[start:stop].decode(), (place or edited).lineno
                if _tree(before) == _tree(after):
                    continue
                numbers[function, operator] += 1
                yield Mutation(
                    file,
                    function,
                    operator,
                    numbers[function, operator],
                    edited.lineno,
                    first,
                    edited.end_lineno or edited.lineno,
                    start,
                    stop,
                    " ".join(before.split()),
                    after,
                    digest(_text(source, scope)),
                )


_Scope = ast.Module | ast.FunctionDef | ast.ClassDef


def _text(source: bytes, scope: _Scope) -> bytes:
    """The lines of a function or a class; those of the file if the scope is the module."""
    if isinstance(scope, ast.Module):
        return source
    return b"".join(source.splitlines(keepends=True)[scope.lineno - 1 : scope.end_lineno])


def _nodes(
    node: ast.AST, function: str, scope: _Scope, place: ast.stmt | None
) -> Iterator[tuple[str, _Scope, ast.stmt | None, ast.AST]]:
    """Every node that may have mutants, with its function, by name and as a node, and its statement."""
    if left_out(node):
        return
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function, scope = node.name if function == "module" else f"{function}.{node.name}", node
    place = node if isinstance(node, ast.stmt) else place
    yield function, scope, place, node
    indexed = _index_constants(node)
    for child in children(node):
        if child not in indexed:
            yield from _nodes(child, function, scope, place)


def _index_constants(node: ast.AST) -> list[ast.AST]:
    """The constants of an index or of a slice, which the operator ``index`` edits."""
    if not isinstance(node, ast.Subscript):
        if not isinstance(node, ast.Slice):
            return []
        return [each for each in (node.lower, node.upper, node.step) if each is not None and _is_number(each)]
    return [node.slice] if _is_number(node.slice) else []


def _is_number(node: ast.AST) -> bool:
    return isinstance(node.operand if isinstance(node, ast.UnaryOp) else node, ast.Constant)


def _starts(source: bytes) -> list[int]:
    """The offset of each line."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


@cache
def _tree(text: str) -> str:
    """The syntax tree of an expression or of a statement that stands in a function and in a loop."""
    return ast.dump(ast.parse(text))
