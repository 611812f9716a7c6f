"""Reading a report back: the tables of its Markdown and of its HTML as text, and what the HTML would load."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

#: Rows of cells, headings first, by the title.
Tables = dict[str, list[list[str]]]


def markdown_tables(text: str) -> Tables:
    """The pipe tables under each heading, without what only escapes, and without the mark of the better direction."""
    found: Tables = {}
    for section in text.split("\n## ")[1:]:
        title, *lines = section.splitlines()
        rows = [
            re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|") and not line.startswith("|:")
        ]
        if rows:
            found[title] = [[_unescaped(cell) for cell in row] for row in rows]
    return found


def _unescaped(cell: str) -> str:
    return html.unescape(re.sub(r"\\(.)", r"\1", cell.strip()))


def received(traffic: dict[str, Any]) -> int:
    """The bytes that all ranks received, of the traffic in a case of the results."""
    return sum(each["received"] for ledger in traffic["measured"] for each in ledger.values())


@dataclass(frozen=True)
class Element:
    """An element of a page and the classes of its parent."""

    tag: str
    attributes: dict[str, str]
    parent: frozenset[str]


class Page(HTMLParser):
    """An HTML page: its tables by caption, every element, and every value that could name something to load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: Tables = {}
        self.elements: list[str] = []
        self.tree: list[Element] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self._within: list[frozenset[str]] = [frozenset()]
        self._title, self._open, self._text = "", "", ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.elements.append(tag)
        self.tree.append(Element(tag, {name: value or "" for name, value in attrs}, self._within[-1]))
        if tag != "meta":  # it has no end
            self._within.append(frozenset(self.tree[-1].attributes.get("class", "").split()))
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.loads += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "action")
        ]
        if tag in ("th", "td", "caption"):
            self._open, self._text = tag, ""
        elif tag == "tr":
            self.tables[self._title].append([])
        elif tag == "span" and self._open:  # the mark of the better direction, and its words
            self._open = ""

    def handle_data(self, data: str) -> None:
        """Note a cell's text."""
        if self._open:
            self._text += data

    def handle_endtag(self, tag: str) -> None:
        """Note a cell."""
        self._within.pop()
        if tag == "caption":
            self._title = self._text
            self.tables[self._title] = []
        elif tag in ("th", "td"):
            self.tables[self._title][-1].append(self._text.strip())
        if tag in ("th", "td", "caption"):
            self._open = ""
