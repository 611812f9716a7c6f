"""Markdown: the document for a pull request, which reads well as plain text, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tabulate import tabulate

from zerobench.report.table import Column, Table

if TYPE_CHECKING:  # a comparison is rendered without pandas
    from zerobench.report.document import Document, Trouble

_ARROWS = {"": "", "less": " \N{DOWNWARDS ARROW}", "more": " \N{UPWARDS ARROW}"}
KEY = "\N{DOWNWARDS ARROW}: less is better; \N{UPWARDS ARROW}: more is better; -: not known."
#: What GitHub reads as markup anywhere; an underscore is one only at the end of a word.
_MARKUP = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")


def render(report: Document) -> str:
    """The whole report."""
    sections = [
        "# zerobench",
        "\n".join(f"- **{escape(what)}:** {escape(told)}" for what, told in report.summary),
        *map(escape, report.setting),
        KEY,
        *(f"## {table.title}\n\n{render_table(table)}" for table in report.tables),
        *_troubles(report.troubles),
        "## Environment\n\n" + "\n".join(f"- {escape(name)}: {escape(value)}" for name, value in report.environment),
        f"## Again\n\n{fence(report.commands)}" if report.commands else "",
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def render_table(table: Table) -> str:
    """An aligned table and its legend."""
    shown = tabulate(
        [[escape(cell) for cell in row] for row in table.rows],
        [escape(heading(column)) for column in table.columns],
        tablefmt="pipe",
        disable_numparse=True,
        colalign=["left" if column.text else "right" for column in table.columns],
    )
    return "\n\n".join(filter(None, [shown, "\n".join(map(escape, table.legend))]))


def heading(column: Column) -> str:
    """A column's title and which direction is better."""
    return column.title + _ARROWS[column.better]


def escape(text: str) -> str:
    """Text from outside as one line that GitHub's Markdown shows as it is, also within a table."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return _MARKUP.sub(lambda found: "\\" + found.group(), text)


def fence(text: str) -> str:
    """Text from outside as a block of code, between fences longer than any in it."""
    longest = max(map(len, re.findall(r"`{3,}", text)), default=2)
    ticks = "`" * (longest + 1)
    return f"{ticks}\n{text}\n{ticks}"


def _troubles(troubles: list[Trouble]) -> Iterator[str]:
    """A section that says of each case that is not right why, if there is one."""
    if troubles:
        yield "## What went wrong, or was not measured"
    for each in troubles:
        name = f"**{escape(each.label)}**: {each.verdict}"
        if not each.message:
            yield name
        elif "\n" in each.message or each.verdict != "unsupported":
            yield f"{name}\n\n{fence(each.message)}"
        else:
            yield f"{name}. {escape(each.message)}"
