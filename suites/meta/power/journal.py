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


def write(path: Path, entries: Iterable[Any]) -> None:
    """Replace the file by these dataclasses, a line each."""
    written = path.with_suffix(".new")
    written.write_text("".join(json.dumps(asdict(each)) + "\n" for each in entries), encoding="utf-8")
    written.replace(path)
