"""Page: the matrix of areas and that of properties, for people: as Markdown, as HTML, and as badges."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files

from tabulate import tabulate

from zerobench.conform.matrix import Cell, by_area, cells, rows
from zerobench.conform.running import slug
from zerobench.conform.verdicts import FINDING, KNOWN, NOT_ENOUGH, NOT_OFFERED, PASS, Json
from zerobench.report import markdown

_CLASSES = {FINDING: "bad", KNOWN: "known", PASS: "good", NOT_OFFERED: "off", NOT_ENOUGH: "off"}
_LEGEND = (
    "pass: the property held in every Scenario that ran; the number says in how many. known: so it did, but the "
    "Scenarios that known findings describe were set aside; the number says how many findings. finding: it did not "
    "hold, at these stages, or in so many properties of the area. not offered: the engine documents that it is "
    "missing. not enough: too few Scenarios ran to say anything."
)
_Cells = Callable[[Json], dict[str, Cell]]
_LINK = re.compile(r"https?://[^\s]+")


def badge(engine: Json) -> str:
    """The JSON of a shields.io endpoint; gray if the engine offered no Scenario of any property."""
    tried = [each for each in cells(engine).values() if each.verdict != NOT_OFFERED]
    held = [each for each in tried if each.verdict in (PASS, KNOWN)]
    known = set().union(*(each.known for each in held))
    red = any(each.verdict == FINDING for each in tried)
    all_held = "brightgreen" if tried else "lightgrey"
    color = "red" if red else all_held if len(held) == len(tried) and not known else "yellow"
    message = f"{len(held)} of {len(tried)} properties" + (f", known findings: {len(known)}" if known else "")
    return json.dumps({"schemaVersion": 1, "label": "zerobench", "message": message, "color": color}) + "\n"


def as_markdown(value: Json) -> str:
    """The areas, the properties, then each finding and each reason."""
    sections = (
        f'## <a id="{anchor}"></a>{markdown.escape(title)}\n\n{markdown.fence(text)}'
        for title, anchor, text in _notes(value["engines"])
    )
    whole = ["### Every property", _table(value, "property", cells)]
    return "\n\n".join(["# Conformance", summary(value), _LEGEND, *whole, *sections]) + "\n"


def summary(value: Json, *, links: bool = True) -> str:
    """The matrix of areas as a Markdown table, whose links lead to sections of the same page."""
    return _table(value, "area", by_area, links=links)


def _table(value: Json, title: str, cells_of: _Cells, *, links: bool = True) -> str:
    engines = value["engines"]
    lines = rows([cells_of(engine) for engine in engines])
    body = [[words, *(_cell(cell, links) for cell in row)] for words, row in lines]
    return tabulate(body, [title, *map(_title, engines)], tablefmt="pipe", disable_numparse=True)


def as_html(value: Json) -> str:
    """The same as one file without scripts."""
    engines = value["engines"]
    style = (files("zerobench") / "report" / "style.css").read_text(encoding="utf-8")
    body = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>zerobench conformance</title>',
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n<h1>Conformance</h1>",
        _html_table(engines, by_area),
        f'<p class="legend">{escape(_LEGEND)}</p>',
        "<h2>Every property</h2>",
        _html_table(engines, cells),
        *(_section(title, anchor, text) for title, anchor, text in _notes(engines)),
        "</main>\n</body>\n</html>\n",
    ]
    return "\n".join(body)


def _html_table(engines: Sequence[Json], cells_of: _Cells) -> str:
    head = "".join(f'<th scope="col" class="text">{escape(_title(engine))}</th>' for engine in engines)
    lines = "\n".join(
        f'<tr><th scope="row" class="text">{escape(words)}</th>{"".join(map(_html, row))}</tr>'
        for words, row in rows([cells_of(engine) for engine in engines])
    )
    table = f"<table>\n<thead><tr><th></th>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table>"
    return f'<div class="wide">{table}</div>'


def _title(engine: Json) -> str:
    own = next((version for name, version in engine["versions"].items() if name != "torch"), None)
    return f"{engine['subject']} ({(own or engine['versions'].get('torch', '')).partition('+')[0]})"


def _cell(cell: Cell | None, links: bool) -> str:
    if cell is None:
        return "-"
    text = f"**{cell.text}**" if cell.verdict == FINDING else cell.text
    return f"[{text}](#{cell.target})" if links and cell.target is not None else text


def _html(cell: Cell | None) -> str:
    if cell is None:
        return '<td class="off">-</td>'
    text = escape(cell.text)
    linked = text if cell.target is None else f'<a href="#{cell.target}">{text}</a>'
    return f'<td class="text {_CLASSES[cell.verdict]}">{linked}</td>'


def _notes(engines: Sequence[Json]) -> Iterator[tuple[str, str, str]]:
    """Title, anchor and text: for each engine its findings, its known findings, and its reasons."""
    for engine in engines:
        column = cells(engine).values()
        for cell in column:
            if cell.findings:
                yield f"{cell.engine}: {cell.words}", slug(f"{cell.engine} {cell.words}"), _told(cell)
        for what, text in (("known findings", _known(engine)), ("reasons", _reasons(column))):
            if text:
                yield f"{engine['subject']}: {what}", slug(f"{engine['subject']} {what}"), text


def _told(cell: Cell) -> str:
    found = (f"{part['finding']['kind']}: {part['finding']['message']}" for part in cell.findings)
    return "\n\n".join([cell.findings[0]["claim"], *found])


def _known(engine: Json) -> str:
    return "\n\n".join(
        f"{each['slug']} ({each['kind']}): {each['explanation']} {each['upstream']}".strip() for each in engine["known"]
    )


def _reasons(column: Iterable[Cell]) -> str:
    """The properties with the verdict "not offered" or "not enough", with the reasons."""
    grey = [each for each in column if each.verdict in (NOT_OFFERED, NOT_ENOUGH)]
    return "\n".join(f"{each.words}: {each.verdict}: {each.reason}" for each in grey)


def _section(title: str, anchor: str, text: str) -> str:
    linked = _LINK.sub(lambda found: f'<a href="{found.group()}">{found.group()}</a>', escape(text))
    return f'<section id="{anchor}">\n<h2>{escape(title)}</h2>\n<pre tabindex="0">{linked}</pre>\n</section>'
