"""The code that has no mutants, because equivalence and accounting judge trajectories and bytes, and nothing else."""

from __future__ import annotations

import ast

_CLIENTS = "steps a client's own optimizer, which no Scenario has; suites/api judges it"

#: Files and folders of the engine, by the suite that judges them instead, or the reason why no suite can.
FILES: dict[str, str] = {
    "checkpoint/background.py": "saves in a thread; suites/api judges it",
    "checkpoint/deepspeed/": "reads and writes another engine's files; suites/api judges it, with DeepSpeed",
    "checkpoint/offline.py": "commands on files, without an engine; suites/api judges it",
    "checkpoint/progress.py": "tells a terminal how far a save is; suites/api judges it",
    "checkpoint/rng.py": "random states, which the harness sets for each leaf; suites/api judges it",
    "checkpoint/whole.py": "exports weights; suites/api judges it",
    "config/not_honoured.py": "refuses keys of a configuration; suites/api judges it",
    "handover.py": "passes a model from one engine to the next; suites/api judges it",
    "errors.py": "the classes of errors; suites/api judges them",
    "native/building.py": "builds kernels into a cache that other processes share; suites/kernels judges it",
    "native/cpu.py": "selects compiler and flags; suites/kernels judges it",
    "native/cuda.py": "selects compiler and flags; no CUDA device computes here",
    "optim/schedulers.py": "attaches a client's scheduler; suites/api and suites/compat judge it",
    "rules/adadelta.py": _CLIENTS,
    "rules/adamax.py": _CLIENTS,
    "rules/client.py": _CLIENTS,
    "rules/elementwise.py": _CLIENTS,
    "rules/nadam.py": _CLIENTS,
    "rules/radam.py": _CLIENTS,
    "rules/rmsprop.py": _CLIENTS,
    "section.py": "the base class of the configuration's sections; suites/api judges it",
    "state/partitioned.py": "constructs a model shard by shard; suites/compat judges it",
    "validate.py": "refuses models and ranks that do not match; suites/api judges it",
}

#: The other code without mutants, for the page and the report.
CODE: tuple[str, ...] = (
    "`raise` and `assert` statements, and every `if` whose block ends with a `raise`: refusals of misuse",
    "messages: every f-string, and the methods `__repr__`, `__str__` and `__format__`",
    "default values in the classes of the configuration's sections",
    "annotations, decorators, imports and docstrings",
)

_SECTIONS = frozenset(("Section", "Offload"))
_TEXT_METHODS = frozenset(("__repr__", "__str__", "__format__"))
_NEVER = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.alias, ast.arg, ast.expr_context)


def left_out(node: ast.AST) -> bool:
    """Whether this node and everything inside it has no mutants."""
    match node:
        case ast.FunctionDef(name=name):
            return name in _TEXT_METHODS
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.If():
            return _refuses(node)
    return isinstance(node, _NEVER)


def children(node: ast.AST) -> list[ast.AST]:
    """The parts of a node that may have mutants: neither annotations nor decorators nor a section's defaults."""
    match node:
        case ast.FunctionDef():
            return [*node.args.defaults, *(each for each in node.args.kw_defaults if each), *node.body]
        case ast.ClassDef():
            return [each for each in node.body if not (_is_section(node) and isinstance(each, ast.AnnAssign))]
        case ast.AnnAssign():
            return [each for each in (node.target, node.value) if each]
    return list(ast.iter_child_nodes(node))


def _refuses(node: ast.If) -> bool:
    """An ``if`` whose block ends with a ``raise``, or that only a type checker enters."""
    checked = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return checked or (isinstance(node.body[-1], ast.Raise) and not node.orelse)


def _is_section(node: ast.ClassDef) -> bool:
    return any(isinstance(base, ast.Name) and base.id in _SECTIONS for base in node.bases)
