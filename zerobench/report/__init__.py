"""Report: results as Markdown for people and pull requests, as HTML with plots, and as JSON; the same numbers in all.

``load`` reads results, ``frame`` holds their numbers, ``document`` says what there is to say, ``markdown`` and ``html``
render it. What draws and what counts is imported when it is first needed: the command line starts without it.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from zerobench.errors import UsageError
from zerobench.report.load import upgrade

Json = dict[str, Any]

FILES = ("report.md", "report.html", "results.json")


def _texts(results: Json) -> tuple[str, str, str]:
    """What is in each of the files; the numbers of all three are those of one frame."""
    from zerobench.report import html, markdown
    from zerobench.report.document import document
    from zerobench.report.frame import Frames
    from zerobench.report.plots import plots

    frames = Frames.of(upgrade(results))
    report = document(frames)
    return (
        markdown.render(report),
        html.render(report, plots(frames)),
        json.dumps(results, indent=1, allow_nan=False) + "\n",
    )


def writable(directory: Path) -> None:
    """Check that :func:`write` could write to ``directory``, without changing anything.

    Raises:
        UsageError: it could not.
    """
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UsageError(f"cannot write a report to {str(directory)!r}: {str(existing)!r} is not a directory")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write a report to {str(directory)!r}: no permission; name another with --out")
    for name in FILES:
        if (directory / name).is_dir():
            raise UsageError(f"cannot write a report to {str(directory)!r}: its {name!r} is a directory")


def write(directory: Path, results: Json) -> str:
    """Write the report and the results, each under a temporary name first, so that all appear or none.

    Returns the report as Markdown.
    """
    texts = _texts(results)
    writable(directory)
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undo:
        temporary = [directory / f".{name}.{os.getpid()}" for name in FILES]
        for path, content in zip(temporary, texts, strict=True):
            undo.callback(path.unlink, missing_ok=True)
            path.write_text(content, encoding="utf-8")
        for path, name in zip(temporary, FILES, strict=True):
            path.replace(directory / name)
    return texts[0]
