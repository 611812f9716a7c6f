"""Ways to spoil the files of a checkpoint, which every layout must refuse."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from zerobench.engine.checkpoint.deepspeed import pickles


class RunsCode:
    """Makes a directory if it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def replace_by_link(path: Path) -> None:
    """Put a symbolic link to the file in its place."""
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def rewrite(path: Path, content: Any) -> None:
    """Replace the content of a file of DeepSpeed's."""
    with path.with_name("new").open("wb") as file:
        pickles.write(file, content)
    path.with_name("new").replace(path)
