"""HTML: the document and its plots as one file that asks no one for anything, readable on light and dark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files

from zerobench.report.document import Document, Trouble
from zerobench.report.plots import Plot
from zerobench.report.table import UNKNOWN, Column, Table
from zerobench.verdict import FAILING

#: Nothing is loaded and nothing runs; styles are those in the file.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_BETTER = {"less": ("\N{DOWNWARDS ARROW}", "less is better"), "more": ("\N{UPWARDS ARROW}", "more is better")}
_VERDICTS = {
    **dict.fromkeys(FAILING | {"WRONG"}, "bad"),
    "unsupported": "off",
    "not measured": "off",
    "bitwise": "good",
}


def render(report: Document, plots: Sequence[Plot]) -> str:
    """The whole page; each plot stands under the table that it draws."""
    style = (files("zerobench") / "report" / "style.css").read_text(encoding="utf-8")
    body = [
        "<h1>zerobench</h1>",
        *_summary(report),
        *(f"<p>{escape(line)}</p>" for line in report.setting),
        *(part for table in report.tables for part in _section(table, plots)),
        *_troubles(report.troubles),
        *_environment(report),
    ]
    head = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        "<title>zerobench report</title>",
        f"<style>\n{style}</style>",
        "</head>",
    ]
    return "\n".join([*head, "<body>", "<main>", *body, "</main>", "</body>", "</html>"]) + "\n"


def render_table(table: Table) -> Iterator[str]:
    """A table with a caption, in a box of its own."""
    yield _box(f"{table.title}, table")
    yield f"<table>\n<caption>{escape(table.title)}</caption>"
    yield f"<thead><tr>{''.join(map(_heading, table.columns))}</tr></thead>\n<tbody>"
    for row in table.rows:
        cells = (_cell(text, column, at) for at, (text, column) in enumerate(zip(row, table.columns, strict=True)))
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody>\n</table>\n</div>"
    yield from (f'<p class="legend">{escape(line)}</p>' for line in table.legend)


def _summary(report: Document) -> Iterator[str]:
    if report.summary:
        yield "<dl class=summary>"
        yield from (f"<div><dt>{escape(what)}</dt><dd>{escape(told)}</dd></div>" for what, told in report.summary)
        yield "</dl>"


def _section(table: Table, plots: Sequence[Plot]) -> Iterator[str]:
    yield f"<section>\n<h2>{escape(table.title)}</h2>"
    yield from render_table(table)
    for plot in plots:
        if plot.table == table.title:
            yield f"<figure>\n{_box(f'{plot.title}, plot')}\n{plot.svg}\n</div>"
            yield f"<figcaption>{escape(plot.caption)}</figcaption>\n</figure>"
    yield "</section>"


def _box(label: str) -> str:
    """The start of a box that scrolls what is wider than the page, by keyboard too."""
    return f'<div class="wide" role="region" tabindex="0" aria-label="{escape(label)}">'


def _heading(column: Column) -> str:
    kind = ' class="text"' if column.text else ""
    arrow = ""
    if column.better:
        sign, meaning = _BETTER[column.better]
        arrow = f'&nbsp;<span aria-hidden="true" title="{meaning}">{sign}</span><span class="unseen">, {meaning}</span>'
    return f'<th scope="col"{kind}>{escape(column.title)}{arrow}</th>'


def _cell(text: str, column: Column, at: int) -> str:
    kinds = [name for name in ("text" if column.text else "", _VERDICTS.get(text, "")) if name]
    if text == UNKNOWN:
        kinds.append("off")
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    return f'<th scope="row"{kind}>{escape(text)}</th>' if at == 0 else f"<td{kind}>{escape(text)}</td>"


def _troubles(troubles: Sequence[Trouble]) -> Iterator[str]:
    if troubles:
        yield "<section>\n<h2>What went wrong, or was not measured</h2>"
    for each in troubles:
        yield f'<h3>{escape(each.label)}: <span class="{_VERDICTS[each.verdict]}">{each.verdict}</span></h3>'
        if each.message:
            yield f'<pre tabindex="0">{escape(each.message)}</pre>'
    if troubles:
        yield "</section>"


def _environment(report: Document) -> Iterator[str]:
    yield "<section>\n<h2>Environment</h2>\n<dl>"
    yield from (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in report.environment)
    yield "</dl>\n</section>"
    if report.commands:
        yield f'<section>\n<h2>Again</h2>\n<pre tabindex="0">{escape(report.commands)}</pre>\n</section>'
