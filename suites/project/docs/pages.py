"""The pages of the project: their text, fenced blocks, commands and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import yaml

from zerobench.suites.support.checkout import ROOT

#: Every page but CHANGELOG.md, as a path from the root of the checkout.
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "kernels/NOTES.md",
    "reports/README.md",
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")),
]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; ``language`` is empty if the fence names none."""

    page: str
    language: str
    text: str


@cache
def read(page: str) -> str:
    """The text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str | None = None) -> list[Block]:
    """The fenced blocks of a page, in order; only those of ``language`` if it is given."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", read(page), re.DOTALL | re.MULTILINE)
    return [Block(page, name, text) for name, text in found if language in (None, name)]


def block(page: str, language: str) -> str:
    """The text of the only block of a language on a page."""
    [found] = blocks(page, language)
    return found.text


def commands(page: str) -> Iterator[str]:
    """The commands of a page: the lines of blocks without a language, and the ``run`` steps of YAML blocks."""
    for each in blocks(page):
        if each.language == "yaml":
            yield from _steps(each.text)
        elif not each.language:
            yield from (part for line in each.text.splitlines() for part in _parts(line))


def _parts(line: str) -> list[str]:
    """The commands of a shell line that ``&&`` connects, without its comment."""
    return re.sub(r"\s+#.*", "", line).split(" && ")


def _steps(text: str) -> Iterator[str]:
    """The commands of a CI job; other YAML has none."""
    for document in yaml.safe_load_all(text):
        if isinstance(document, list):
            yield from (step["run"] for step in document if "run" in step)


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them, and those that the page has of its own."""
    prose = re.sub(r"^```.*?^```$", "", read(page), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    own = re.findall(r'<a id="([\w-]+)">', prose)
    return {*own, *(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)}
