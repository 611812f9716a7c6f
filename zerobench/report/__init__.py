"""Report: results as Markdown for people and pull requests, as HTML with plots, and as JSON, with the same numbers.

``frame`` holds the numbers of results, ``document`` composes the report, ``markdown`` and ``html`` render it. The
package imports pandas and matplotlib on first use: the command line starts without them.
"""

from __future__ import annotations

import json
from pathlib import Path

from zerobench.extras import demand_extra
from zerobench.machine.files import check_writable, write_together
from zerobench.results import Json
from zerobench.results.versions import upgrade

_REPORT, _PAGE, _RESULTS = FILES = ("report.md", "report.html", "results.json")


def check_possible(directory: Path) -> None:
    """Check that a report can be rendered and written to ``directory``, without changing anything.

    Raises:
        UsageError: if rendering or writing is impossible.
    """
    demand_extra("report")
    check_writable(directory, FILES)


def write(directory: Path, results: Json) -> str:
    """Write the results, then their report: if rendering fails, the measurements are kept.

    Each file is written under a temporary name first. The two files of the report appear together or not at all.
    Returns the report as Markdown.

    Raises:
        UsageError: if the directory or the disk refuses them.
    """
    check_writable(directory, FILES)
    keep(directory, results)
    try:
        texts = _rendered(results)
    except Exception as error:
        error.add_note(f"The results are in {str(directory / _RESULTS)!r}; `zerobench report` renders them.")
        raise
    write_together(directory, texts)
    return texts[_REPORT]


def keep(directory: Path, results: Json) -> None:
    """Write the results so far, without a report."""
    write_together(directory, {_RESULTS: json.dumps(results, indent=1, allow_nan=False) + "\n"})


def _rendered(results: Json) -> dict[str, str]:
    """The report by file name; both files show the numbers of one frame."""
    from zerobench.report import html, markdown
    from zerobench.report.document import compose
    from zerobench.report.frame import Frames
    from zerobench.report.plots import draw

    frames = Frames.of(upgrade(results))
    report = compose(frames)
    return {_REPORT: markdown.render(report), _PAGE: html.render(report, draw(frames))}
