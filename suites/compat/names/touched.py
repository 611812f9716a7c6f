"""The names of DeepSpeed that transformers, accelerate and peft use, found in their sources.

``python -m zerobench.suites.compat.names.touched`` records those of the installed releases in ``touched.json``.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

GOLDEN = Path(__file__).with_name("touched.json")
PACKAGES = ("transformers", "accelerate", "peft")


def found() -> dict[str, list[str]]:
    """By package: the dotted names below ``deepspeed``, tests left out."""
    return {package: sorted(_of_package(package)) for package in PACKAGES}


def _of_package(package: str) -> set[str]:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    sources = [path for path in root.rglob("*.py") if "test" not in str(path.relative_to(root))]
    texts = (path.read_text(encoding="utf-8") for path in sources)
    return {name for text in texts if "deepspeed" in text for name in _names(ast.parse(text))}


def _names(tree: ast.AST) -> Iterator[str]:
    """Imports from deepspeed, and attributes of a name ``deepspeed`` that an import of the module binds."""
    imported = False
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "deepspeed" and not node.level:
            yield from (f"{node.module}.{each.name}" for each in node.names)
        if isinstance(node, ast.Import):
            modules = [each.name for each in node.names if each.name.split(".")[0] == "deepspeed"]
            imported |= bool(modules)
            yield from (name for name in modules if name != "deepspeed")
    if imported:
        yield from {_dotted(node) for node in ast.walk(tree) if _dotted(node).startswith("deepspeed.")}


def _dotted(node: ast.AST) -> str:
    """``a.b.c`` of an attribute; empty for anything else."""
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(found(), indent=1) + "\n", encoding="utf-8")
