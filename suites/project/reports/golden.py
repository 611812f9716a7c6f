"""The rendering of the sample, kept under ``golden/``.

``python -m zerobench.suites.project.reports.golden`` writes it anew.
"""

from __future__ import annotations

from pathlib import Path

from zerobench.report import html, markdown
from zerobench.report.document import compose
from zerobench.report.frame import Frames
from zerobench.suites.project.reports import sample

DIRECTORY = Path(__file__).parent / "golden"


def rendering() -> dict[str, str]:
    """By name of the file: all of the Markdown, and of the HTML the tables, which no library draws its own way."""
    report = compose(Frames.of(sample.results()))
    tables = "\n".join(line for table in report.tables for line in html.render_table(table))
    return {"report.md": markdown.render(report), "tables.html": tables + "\n"}


if __name__ == "__main__":
    for name, text in rendering().items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")
