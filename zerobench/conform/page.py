"""Page: the matrix of properties and engines, for people: as Markdown, as HTML, and as badges."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files

from tabulate import tabulate

from zerobench.conform.running import slug
from zerobench.conform.verdicts import FINDING, KNOWN, NOT_ENOUGH, NOT_OFFERED, PASS, Json
from zerobench.report import markdown

_CLASSES = {FINDING: "bad", KNOWN: "bad", PASS: "good", NOT_OFFERED: "off", NOT_ENOUGH: "off"}
_LEGEND = (
    "pass: held in every Scenario that ran, of which there are as many as the number; known finding: the draws that a "
    "known finding describes were set aside, and it is still there; not offered: the engine documents that it is "
    "missing; not enough: too few Scenarios ran to say anything."
)
_LINK = re.compile(r"https?://[^\s]+")


def badge(engine: Json) -> str:
    """The JSON of a shields.io endpoint."""
    tried = [each for each in engine["properties"] if each["verdict"] != NOT_OFFERED]
    held = sum(each["verdict"] == PASS for each in tried)
    red = any(each["verdict"] == FINDING for each in tried)
    color = "red" if red else "brightgreen" if held == len(tried) else "yellow"
    message = f"{held} of {len(tried)} properties"
    return json.dumps({"schemaVersion": 1, "label": "zerobench", "message": message, "color": color}) + "\n"


def as_markdown(value: Json) -> str:
    """The matrix, then each finding and each reason."""
    engines = value["engines"]
    rows = [[_words(name), *(_cell(engine, name) for engine in engines)] for name in _tried(engines)]
    table = tabulate(rows, ["property", *map(_title, engines)], tablefmt="pipe", disable_numparse=True)
    return "\n\n".join(["# Conformance", table, _LEGEND, *_details(engines)]) + "\n"


def as_html(value: Json) -> str:
    """The same as one file without scripts."""
    engines = value["engines"]
    style = (files("zerobench") / "report" / "style.css").read_text(encoding="utf-8")
    head = "".join(f'<th scope="col" class="text">{escape(_title(engine))}</th>' for engine in engines)
    rows = "\n".join(
        f'<tr><th scope="row" class="text">{escape(_words(name))}</th>{"".join(_html(e, name) for e in engines)}</tr>'
        for name in _tried(engines)
    )
    body = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>zerobench conformance</title>',
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n<h1>Conformance</h1>",
        f'<div class="wide"><table>\n<thead><tr><th></th>{head}</tr></thead>\n<tbody>\n{rows}',
        "</tbody>\n</table></div>",
        f'<p class="legend">{escape(_LEGEND)}</p>',
        *(_section(title, anchor, text) for title, anchor, text in _notes(engines)),
        "</main>\n</body>\n</html>\n",
    ]
    return "\n".join(body)


def _title(engine: Json) -> str:
    own = engine["versions"].get(engine["subject"]) or engine["versions"].get("torch", "")
    return f"{engine['subject']} ({own.partition('+')[0]})"


def _words(name: str) -> str:
    return name.partition("::test_")[2].replace("_", " ")


def _tried(engines: Sequence[Json]) -> list[str]:
    """The properties that at least one engine offers, in the suite's order."""
    found = {each["name"]: None for e in engines for each in e["properties"] if each["verdict"] != NOT_OFFERED}
    return list(found)


def _of(engine: Json, name: str) -> Json | None:
    return next((each for each in engine["properties"] if each["name"] == name), None)


def _anchor(engine: Json, name: str) -> str:
    return slug(f"{engine['subject']} {_words(name)}")


def _text(found: Json) -> str:
    ran = sum(cell["run"] for cell in found["cells"])
    return (
        f"{found['verdict']} {ran}" if found["verdict"] in (PASS, NOT_ENOUGH) and found["cells"] else found["verdict"]
    )


def _cell(engine: Json, name: str) -> str:
    found = _of(engine, name)
    if found is None or found["verdict"] == PASS:
        return "-" if found is None else _text(found)
    bold = "**" if found["verdict"] == FINDING else ""
    return f"[{bold}{_text(found)}{bold}](#{_anchor(engine, name)})"


def _html(engine: Json, name: str) -> str:
    found = _of(engine, name)
    if found is None:
        return '<td class="off">-</td>'
    text = escape(_text(found))
    linked = text if found["verdict"] == PASS else f'<a href="#{_anchor(engine, name)}">{text}</a>'
    return f'<td class="text {_CLASSES[found["verdict"]]}">{linked}</td>'


def _notes(engines: Sequence[Json]) -> Iterator[tuple[str, str, str]]:
    """Title, anchor and text of everything that is not a pass."""
    tried = set(_tried(engines))
    for engine in engines:
        for found in engine["properties"]:
            if found["verdict"] != PASS and found["name"] in tried:
                title = f"{engine['subject']}: {_words(found['name'])}"
                yield title, _anchor(engine, found["name"]), _told(engine, found)


def _told(engine: Json, found: Json) -> str:
    if found["verdict"] == FINDING:
        return f"{found['claim']}\n\n{found['finding']['kind']}: {found['finding']['message']}"
    known = [each for each in engine["known"] if each["slug"] in found["known"]]
    if known:
        return "\n\n".join(
            f"{each['slug']} ({each['kind']}): {each['explanation']} {each['upstream']}" for each in known
        )
    return f"{found['verdict']}: {found['reason'] or 'no reason was given'}"


def _details(engines: Sequence[Json]) -> Iterator[str]:
    for title, anchor, text in _notes(engines):
        yield f'## <a id="{anchor}"></a>{markdown.escape(title)}\n\n{markdown.fence(text)}'


def _section(title: str, anchor: str, text: str) -> str:
    linked = _LINK.sub(lambda found: f'<a href="{found.group()}">{found.group()}</a>', escape(text))
    return f'<section id="{anchor}">\n<h2>{escape(title)}</h2>\n<pre tabindex="0">{linked}</pre>\n</section>'
