"""Journals: files with a line of JSON for each thing that was tried, replaced as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any


def read(path: Path) -> list[dict[str, Any]]:
    """The lines; a last line that is not complete is left out."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def add(path: Path, entry: Any) -> None:
    """Add a dataclass as the last line."""
    write(path, [*read(path), asdict(entry)])


def write(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Replace the file by these lines."""
    written = path.with_suffix(".new")
    written.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    written.replace(path)
