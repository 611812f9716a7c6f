"""The operators: each gives, for a node of the engine's syntax tree, the wrong texts that may stand in its place."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from typing import Any

#: A node, and the source text that replaces it.
Edit = tuple[ast.AST, str]

_ARITHMETIC: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.FloorDiv(),
    ast.FloorDiv: ast.Mult(),
    ast.Div: ast.Mult(),
    ast.Mod: ast.FloorDiv(),
    ast.Pow: ast.Mult(),
    ast.LShift: ast.RShift(),
    ast.BitOr: ast.BitAnd(),
}
#: The nearest comparison, which differs at the bound only, and the opposite one.
_COMPARISONS: dict[type[ast.cmpop], tuple[ast.cmpop, ...]] = {
    ast.Lt: (ast.LtE(), ast.GtE()),
    ast.LtE: (ast.Lt(), ast.Gt()),
    ast.Gt: (ast.GtE(), ast.LtE()),
    ast.GtE: (ast.Gt(), ast.Lt()),
    ast.Eq: (ast.NotEq(),),
    ast.NotEq: (ast.Eq(),),
    ast.Is: (ast.IsNot(),),
    ast.IsNot: (ast.Is(),),
    ast.In: (ast.NotIn(),),
    ast.NotIn: (ast.In(),),
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SEQUENCES = (ast.List, ast.Tuple, ast.JoinedStr)
#: Names that hold a position; one more than another object is an error that every test would notice.
_POSITIONS = frozenset(("i", "j", "d", "r", "at", "index", "position", "rank", "first", "start", "group"))


def arithmetic(node: ast.AST) -> Iterator[Edit]:
    """Another operation: + for -, // for *, * for / and //, // for %; without the sign of a negated value."""
    match node:
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC and not _joins(node):
            yield node, _with(node, op=_ARITHMETIC[type(op)])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.AugAssign(op=op) if type(op) in _ARITHMETIC and not isinstance(node.value, ast.List):
            yield node, _statement(node, op=_ARITHMETIC[type(op)])


def comparison(node: ast.AST) -> Iterator[Edit]:
    """The comparison that differs at the bound, and the opposite one."""
    if isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            for other in _COMPARISONS[type(op)]:
                yield node, _with(node, ops=[*node.ops[:place], other, *node.ops[place + 1 :]])


def boolean(node: ast.AST) -> Iterator[Edit]:
    """``or`` for ``and``, ``and`` for ``or``, and a condition without its ``not``."""
    match node:
        case ast.BoolOp(op=ast.And()):
            yield node, _with(node, op=ast.Or())
        case ast.BoolOp(op=ast.Or()):
            yield node, _with(node, op=ast.And())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"


def condition(node: ast.AST) -> Iterator[Edit]:
    """A condition that is always true, and one that is always false."""
    tests: list[ast.expr] = []
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        tests = [node.test]
    elif isinstance(node, ast.comprehension):
        tests = node.ifs
    for test in tests:
        if not isinstance(test, ast.NamedExpr | ast.Constant):
            yield test, "True"
            yield test, "False"


def index(node: ast.AST) -> Iterator[Edit]:
    """The next element; a slice that is one element shorter at either end, or has no bound there."""
    if not isinstance(node, ast.Subscript):
        return
    if isinstance(node.slice, ast.Slice):
        for part in _slices(node.slice):
            yield node, _with(node, slice=part)
    elif _is_position(node.slice):
        yield node, _with(node, slice=_plus(node.slice, 1))


def constant(node: ast.AST) -> Iterator[Edit]:
    """One more, twice a fraction, and the other truth value."""
    match node:
        case ast.Constant(value=bool(value)):
            yield node, str(not value)
        case ast.Constant(value=int(value)):
            yield node, str(value + 1)
        case ast.Constant(value=float(value)):
            yield node, repr(value * 2 if value else 1.0)


def call(node: ast.AST) -> Iterator[Edit]:
    """``min`` for ``max``, ``any`` for ``all``, and the reverse; a sequence that is not turned around."""
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
            yield node, _with(node, func=ast.Name(_CALLS[name]))
        case ast.Call(func=ast.Name(id="reversed"), args=[given]):
            yield node, f"({ast.unparse(given)})"


def statement(node: ast.AST) -> Iterator[Edit]:
    """Nothing instead of a call, of an assignment to an object, of ``del``, or of an early return; ``break`` for
    ``continue`` and the reverse."""
    match node:
        case ast.Expr(value=ast.Call()) | ast.Delete() | ast.AugAssign() | ast.Return(value=None):
            yield node, "pass"
        case ast.Assign(targets=targets) if all(isinstance(each, ast.Attribute | ast.Subscript) for each in targets):
            yield node, "pass"
        case ast.Break():
            yield node, "continue"
        case ast.Continue():
            yield node, "break"


def result(node: ast.AST) -> Iterator[Edit]:
    """None instead of a returned value."""
    match node:
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield node, "return None"


#: By name, in the order of the report.
OPERATORS: dict[str, Callable[[ast.AST], Iterator[Edit]]] = {
    each.__name__: each
    for each in (arithmetic, comparison, boolean, condition, index, constant, call, statement, result)
}


def _with(node: ast.expr, **changes: Any) -> str:
    """The text of an expression with some of its fields changed; in parentheses, so that it may stand anywhere."""
    return f"({_statement(node, **changes)})"


def _statement(node: ast.AST, **changes: Any) -> str:
    changed = copy.copy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return ast.unparse(changed)


def _joins(node: ast.BinOp) -> bool:
    """Whether it joins texts or lists, or unites types: any other operation raises in every run."""
    sides = (node.left, node.right)
    if any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in sides):
        return True
    if isinstance(node.op, ast.BitOr):
        return all(isinstance(each, ast.Name | ast.Attribute | ast.BinOp) for each in sides)
    return isinstance(node.op, ast.Add) and any(isinstance(each, _SEQUENCES) for each in sides)


def _plus(node: ast.expr, more: int) -> ast.expr:
    return ast.BinOp(node, ast.Add() if more > 0 else ast.Sub(), ast.Constant(1))


def _is_position(node: ast.expr) -> bool:
    """Whether an index is surely a number."""
    match node:
        case ast.Constant(value=int()) | ast.BinOp(op=ast.Add() | ast.Sub() | ast.FloorDiv() | ast.Mod()):
            return True
        case ast.UnaryOp(op=ast.USub()):
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in _POSITIONS
    return False


def _slices(given: ast.Slice) -> Iterator[ast.Slice]:
    """The slice with one bound moved by one element, or without one of its parts."""
    lower, upper, step = given.lower, given.upper, given.step
    if lower is not None:
        yield ast.Slice(_plus(lower, 1), upper, step)
        yield ast.Slice(None, upper, step)
    if upper is not None:
        yield ast.Slice(lower, _plus(upper, -1), step)
        yield ast.Slice(lower, None, step)
    if step is not None:
        yield ast.Slice(lower, upper, None)
