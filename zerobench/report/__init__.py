"""Report: results as Markdown for people and pull requests, as HTML with plots, and as JSON; the same numbers in all.

``load`` reads results, ``frame`` holds their numbers, ``document`` says what there is to say, ``markdown`` and ``html``
render it. What draws and what counts is imported when it is first needed: the command line starts without it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from zerobench.errors import UsageError
from zerobench.results.load import upgrade

Json = dict[str, Any]

_REPORT, _PAGE, _RESULTS = FILES = ("report.md", "report.html", "results.json")


def _rendered(results: Json) -> dict[str, str]:
    """The report by the name of its file; the numbers of both are those of one frame."""
    from zerobench.report import html, markdown
    from zerobench.report.document import document
    from zerobench.report.frame import Frames
    from zerobench.report.plots import plots

    frames = Frames.of(upgrade(results))
    report = document(frames)
    return {_REPORT: markdown.render(report), _PAGE: html.render(report, plots(frames))}


def writable(directory: Path, names: Sequence[str] = FILES) -> None:
    """Check that files of these names could be written to ``directory``, without changing anything.

    Raises:
        UsageError: they could not.
    """
    cannot = f"cannot write to {str(directory)!r}"
    try:
        existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
        if not existing.is_dir():
            raise UsageError(f"{cannot}: {str(existing)!r} is not a directory")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise UsageError(f"{cannot}: no permission in {str(existing)!r}")
        for name in names:
            if (directory / name).is_dir():
                raise UsageError(f"{cannot}: its {name!r} is a directory")
    except OSError as error:  # such as of a directory that nobody may look into
        raise UsageError(f"{cannot}: {error.strerror}") from None


def write(directory: Path, results: Json) -> str:
    """Write the results, then their report: what was measured outlives a report that cannot be rendered.

    Each file has a temporary name first, and those of the report appear both or not at all. Returns the report as
    Markdown.

    Raises:
        UsageError: the directory or the disk does not take them.
    """
    writable(directory)
    appear(directory, {_RESULTS: json.dumps(results, indent=1, allow_nan=False) + "\n"})
    try:
        texts = _rendered(results)
    except Exception as error:
        error.add_note(f"The results are in {str(directory / _RESULTS)!r}; `zerobench report` renders them.")
        raise
    appear(directory, texts)
    return texts[_REPORT]


def appear(directory: Path, texts: Mapping[str, str]) -> None:
    """Write files, by name, each under a temporary name first; all appear or none.

    Raises:
        UsageError: the directory or the disk does not take them.
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
