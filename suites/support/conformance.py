"""The pytest plugin of ``zerobench conform``: after each test it appends a line of JSON to ``--conformance FILE``.

Tests that have a line there already do not run again, so that an interrupted run goes on.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import zerobench
from zerobench.suites.support import tally

_OPTION = "--conformance"
_REPLAY = re.compile(r"^\s*reproduce (zerobench replay .*)$", re.MULTILINE)
_KINDS = {"raised": "raised", "crashed": "died", "timeout": "hung"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(_OPTION, type=Path, help="the file to which each test appends its outcome")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that have run."""
    file: Path = config.getoption(_OPTION)
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    ran = {json.loads(line).get("property") for line in lines}
    items[:] = [item for item in items if _property(item) not in ran]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Count the draws of this test alone."""
    tally.current = tally.Tally()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Append the line of a test that has run, or that never will."""
    report = yield
    if report.when == "call" or (report.when == "setup" and not report.passed):
        with item.config.getoption(_OPTION).open("a", encoding="utf-8") as file:
            file.write(json.dumps(_record(item, report, call)) + "\n")
    return report


def _property(item: pytest.Item) -> str:
    """The test's file and name, such as ``test_steps.py::test_clipping``."""
    return f"{item.path.name}::{item.name}"


def _record(item: pytest.Item, report: pytest.TestReport, call: pytest.CallInfo[None]) -> dict[str, Any]:
    drawn = tally.current
    skipped = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
    error = call.excinfo.value if call.excinfo and report.failed else None
    function = getattr(item, "function", None)
    return {
        "property": _property(item),
        "claim": " ".join((getattr(function, "__doc__", "") or "").split()),
        "outcome": report.outcome,
        "reason": skipped.removeprefix("Skipped: "),
        "drawn": _by_cell(drawn.drawn),
        "refused": _by_cell(drawn.refused),
        "set_aside": _by_cell(drawn.set_aside),
        "ran": _by_cell(drawn.ran),
        "reasons": dict(drawn.reasons),
        "known": dict(drawn.known),
        "failure": None if error is None else _failure(error),
    }


def _by_cell(counts: Counter[tuple[int, str]]) -> dict[str, int]:
    """The counts by ``stage/dtype``."""
    return {f"{stage}/{dtype}": count for (stage, dtype), count in counts.items()}


def _failure(error: BaseException) -> dict[str, Any]:
    message, scenario = without_folders(str(error) or type(error).__name__), tally.current.failing
    replay = _REPLAY.findall(message)
    return {
        "kind": _KINDS.get(getattr(error, "kind", ""), "wrong"),
        "message": message,
        "scenario": None if scenario is None else json.loads(scenario.to_json()),
        "replay": replay[-1] if replay else None,
    }


def without_folders(text: str) -> str:
    """The text with modules' files named from their search path, so that a published result names no machine's."""
    own = str(Path(zerobench.__file__).parents[1])  # an editable installation is not in the search path
    for folder in sorted({own, *filter(None, sys.path)}, key=len, reverse=True):
        text = text.replace(f"{folder}/", "")
    return text
