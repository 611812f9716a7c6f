"""Report: results as Markdown for people and pull requests, as HTML with plots, and as JSON; the same numbers in all.

``frame`` holds the numbers of results, ``document`` composes what there is to say, ``markdown`` and ``html`` render
it. What draws and what counts is imported when it is first needed: the command line starts without it.
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
        UsageError: it cannot.
    """
    demand_extra("report")
    check_writable(directory, FILES)


def write(directory: Path, results: Json) -> str:
    """Write the results, then their report: what was measured outlives a report that cannot be rendered.

    Each file has a temporary name first, and those of the report appear both or not at all. Returns the report as
    Markdown.

    Raises:
        UsageError: the directory or the disk does not take them.
    """
    check_writable(directory, FILES)
    write_together(directory, {_RESULTS: json.dumps(results, indent=1, allow_nan=False) + "\n"})
    try:
        texts = _rendered(results)
    except Exception as error:
        error.add_note(f"The results are in {str(directory / _RESULTS)!r}; `zerobench report` renders them.")
        raise
    write_together(directory, texts)
    return texts[_REPORT]


def _rendered(results: Json) -> dict[str, str]:
    """The report by the name of its file; the numbers of both are those of one frame."""
    from zerobench.report import html, markdown
    from zerobench.report.document import compose
    from zerobench.report.frame import Frames
    from zerobench.report.plots import draw

    frames = Frames.of(upgrade(results))
    report = compose(frames)
    return {_REPORT: markdown.render(report), _PAGE: html.render(report, draw(frames))}
