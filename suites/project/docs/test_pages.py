"""All pages: links lead somewhere, lines have one width, and a test runs each command and each program."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from zerobench.suites.project.docs.pages import PAGES, anchors, blocks, commands, read
from zerobench.suites.project.docs.run_by import COMMANDS, PROGRAMS
from zerobench.suites.support.checkout import ROOT

_WIDTH = 120
_FOLDERS = r"(?:engine|kernels|suites|zerobench|reports|docs)"
_DIAGRAMS = {"docs/reference/engine.md", "docs/reference/gate.md", "docs/reference/run.md"}

_each_page = pytest.mark.parametrize("page", PAGES)


def _links(page: str) -> Iterator[tuple[str, str]]:
    """The path and the anchor of each link that stays in the repository."""
    for target in re.findall(r"\]\(([^)]+)\)", read(page)):
        if ":" not in target:
            path, _, anchor = target.partition("#")
            yield path, anchor


@_each_page
def test_links(page: str) -> None:
    """Every link leads to a file that exists, and to a heading of it."""
    for path, anchor in _links(page):
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert target.exists(), f"{page} links to {path}, which does not exist"
        if anchor:
            found = anchors(str(target.relative_to(ROOT)))
            assert anchor in found, f"{page} links to #{anchor} of {path}, which has {sorted(found)}"


def test_every_page_is_linked() -> None:
    """docs/index.md links every page below docs."""
    linked = {str((ROOT / "docs" / path).resolve().relative_to(ROOT)) for path, _ in _links("docs/index.md")}
    pages = {page for page in PAGES if page.startswith("docs/")} - {"docs/index.md"}
    assert pages <= linked, f"docs/index.md does not link {sorted(pages - linked)}"


@_each_page
def test_named_files_exist(page: str) -> None:
    """A path in code font, such as engine/layout.py, exists."""
    for path in re.findall(rf"`({_FOLDERS}/[\w./-]*)`", read(page)):
        assert (ROOT / path).exists(), f"{page} names {path}, which does not exist"


@_each_page
def test_width(page: str) -> None:
    """No line is longer than the width; tables and code blocks are exempt."""
    prose = re.sub(r"^```.*?^```$", "", read(page), flags=re.DOTALL | re.MULTILINE)
    long = [line for line in prose.splitlines() if len(line) > _WIDTH and not line.startswith("|")]
    assert not long, f"{page} has lines of more than {_WIDTH} characters:\n" + "\n".join(long)


def test_every_command_is_run() -> None:
    """A test runs each fenced command: if this fails, write one and name it in run_by.py."""
    missing = [
        f"{page}: {command}"
        for page in PAGES
        for command in commands(page)
        if not any(re.fullmatch(pattern, command) for pattern in COMMANDS)
    ]
    assert not missing, "no test runs these commands:\n" + "\n".join(missing)


def test_every_program_is_run() -> None:
    """A test runs each Python block: if this fails, write one and name it in run_by.py."""
    found = {page: len(blocks(page, "python")) for page in PAGES}
    assert {page: count for page, count in found.items() if count} == {
        page: len(tests) for page, tests in PROGRAMS.items()
    }


def test_languages() -> None:
    """A block that no test runs has a language for that: the output of a command, or the script of a scheduler."""
    others = {(page, each.language) for page in PAGES for each in blocks(page) if each.language in ("bash", "text")}
    assert others == {
        ("docs/how-to/add-an-optimizer.md", "text"),
        ("docs/how-to/run-on-a-cluster.md", "bash"),
        ("docs/reference/kernels.md", "text"),
        ("docs/reference/power.md", "text"),
    }
    known = {"", "python", "json", "yaml", "mermaid", "bash", "text"}
    assert {each.language for page in PAGES for each in blocks(page)} <= known


def test_named_tests_exist() -> None:
    """Every test that run_by.py names exists, and every pattern matches a command."""
    for named in {*COMMANDS.values(), *(test for tests in PROGRAMS.values() for test in tests)}:
        path, _, test = named.partition("::")
        assert not test or f"\ndef {test}(" in (ROOT / path).read_text(encoding="utf-8"), f"{named} does not exist"
    every = [command for page in PAGES for command in commands(page)]
    for pattern in COMMANDS:
        assert any(re.fullmatch(pattern, command) for command in every), f"no page has a command like {pattern}"


def test_diagrams() -> None:
    """The pages of a step, a run and the gate have one diagram each, and no other language is a diagram's."""
    assert {page for page in PAGES if blocks(page, "mermaid")} == _DIAGRAMS
    for page in _DIAGRAMS:
        [diagram] = blocks(page, "mermaid")
        assert re.match(r"(sequenceDiagram|flowchart (TD|LR))\n", diagram.text)


def test_pages_that_the_source_names() -> None:
    """A comment or docstring names only pages that exist."""
    listed = subprocess.run(["git", "ls-files", "*.py", "*.yml"], cwd=ROOT, capture_output=True, text=True, check=True)
    for path in map(Path, listed.stdout.split()):
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", (ROOT / path).read_text(encoding="utf-8")):
            assert (ROOT / page).exists(), f"{path} names {page}, which does not exist"
