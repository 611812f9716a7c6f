"""Files that are written completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from zerobench.errors import UsageError


def check_writable(directory: Path, names: Sequence[str]) -> None:
    """Check that files of these names could be written to ``directory``, without changing anything.

    Raises:
        UsageError: if they could not.
    """
    cannot = f"cannot write to {str(directory)!r}"
    try:
        existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
        if not existing.is_dir():
            raise UsageError(f"{cannot}: {str(existing)!r} is not a directory")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise UsageError(f"{cannot}: no permission in {str(existing)!r}")
        for name in names:
            if not name or (directory / name).is_dir():
                raise UsageError(f"{cannot}: its {name!r} is a directory" if name else f"{cannot}: it is a directory")
    except OSError as error:  # such as a directory without access
        raise UsageError(f"{cannot}: {error.strerror}") from None


def write_together(directory: Path, texts: Mapping[str, str]) -> None:
    """Write files, by name, each under a temporary name first; all appear or none.

    Raises:
        UsageError: if the directory or the disk refuses them.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as undo:
            temporary = {name: directory / f".{name}.{os.getpid()}" for name in texts}
            for name, path in temporary.items():
                undo.callback(path.unlink, missing_ok=True)
                path.write_text(texts[name], encoding="utf-8")
            for name, path in temporary.items():
                path.replace(directory / name)
    except OSError as error:
        raise UsageError(f"cannot write to {str(directory)!r}: {error.strerror or error}") from None
