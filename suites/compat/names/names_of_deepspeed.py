"""The public names of the installed DeepSpeed, by module.

``python -m zerobench.suites.compat.names.names_of_deepspeed`` records them for ``zerobench/compat/names.json``.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from zerobench.compat import unoffered
from zerobench.compat.activation import SITE

#: Packages below which nothing is recorded: other accelerators, and kernels that need a GPU.
_CLOSED = frozenset(
    f"deepspeed.{name}"
    for name in ("autotuning", "compile", "compression", "inference.v2", "module_inject.containers", "ops.op_builder")
)
_Names = dict[str, Any]


def methods(file: str, name: str) -> set[str] | None:
    """The public methods of a class in a file of the installed DeepSpeed; None if it is not installed."""
    files = [Path(folder, "deepspeed", file) for folder in sys.path if Path(folder) != SITE]
    source = next((each.read_text(encoding="utf-8") for each in files if each.is_file()), "")
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name]
    members = [node for node in classes[0].body if isinstance(node, ast.FunctionDef)] if classes else []
    return {node.name for node in members if not node.name.startswith("_")} or None


def found() -> dict[str, _Names]:
    """Each module's names: ``class``, ``exception``, ``function`` or ``module``, or a list of one constant."""
    recorded = {module.__name__: dict(_named(module)) for module in _modules("deepspeed")}
    return {module: dict(_there(module, names, recorded)) for module, names in recorded.items()}


def _there(module: str, names: _Names, recorded: dict[str, _Names]) -> Iterator[tuple[str, Any]]:
    """The names, without modules that are not recorded."""
    yield from ((name, kind) for name, kind in names.items() if kind != "module" or f"{module}.{name}" in recorded)


def _modules(name: str) -> Iterator[ModuleType]:
    """The module and those below it that can be imported."""
    try:
        module = importlib.import_module(name)
    except Exception:  # it needs what this machine lacks  # noqa: BLE001
        return
    yield module
    if name not in _CLOSED:
        for each in pkgutil.iter_modules(getattr(module, "__path__", ())):
            yield from _modules(f"{name}.{each.name}")


def _named(module: ModuleType) -> Iterator[tuple[str, Any]]:
    assigned, functions = _assigned(module), _functions(module)
    for name, value in sorted(vars(module).items()):
        if not name.startswith("_"):
            kind = [value] if name in assigned and _is_constant(value) else _kind(module, value)
            if kind is None and name in functions:
                kind = "function"  # a decorator has put an object of another module in its place
            if kind is not None:
                yield name, kind


def _kind(module: ModuleType, value: Any) -> str | None:
    """The kind of a name, if it is defined in this module or a package passes it on."""
    if inspect.ismodule(value):
        return "module" if value.__name__.startswith(f"{module.__name__}.") else None
    home = str(getattr(value, "__module__", ""))
    if home != module.__name__ and not (hasattr(module, "__path__") and home.startswith("deepspeed.")):
        return None
    if inspect.isclass(value):
        return "exception" if issubclass(value, Exception) else "class"
    return "function" if inspect.isfunction(value) else None


def _assigned(module: ModuleType) -> set[str]:
    """The names that the module's own source assigns."""
    targets = [target for node in _source(module) if isinstance(node, ast.Assign) for target in node.targets]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _functions(module: ModuleType) -> set[str]:
    """The functions that the module's own source defines."""
    return {node.name for node in _source(module) if isinstance(node, ast.FunctionDef)}


def _source(module: ModuleType) -> list[ast.stmt]:
    return ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8")).body


def _is_constant(value: Any) -> bool:
    """Whether it is a plain value that is the same on each machine."""
    return isinstance(value, bool | int | float | str) and not (isinstance(value, str) and "/" in value)


def main() -> None:
    """Record the names."""
    recorded = sorted(found().items())
    lines = [f"{json.dumps(name)}: {json.dumps(names, sort_keys=True)}" for name, names in recorded]
    unoffered.NAMES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
