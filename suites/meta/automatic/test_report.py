"""The report: shares, classes, and the published one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from zerobench.suites.meta.automatic import report
from zerobench.suites.meta.automatic.enumeration import Mutation, mutations
from zerobench.suites.meta.automatic.results import Results
from zerobench.suites.meta.automatic.trying import Result

_SURVIVOR = Result("a:f:call:1", "a", 1, "f", "call", "min(a)", "(max(a))", "0", "survived")


def test_shares() -> None:
    """Rounded down; none if nothing was tried."""
    assert report.share(2, 3) == "66.6 %"
    assert report.share(0, 0) == ""


def test_a_class_holds_for_the_edit_that_was_read() -> None:
    """If the code changes, its survivor is unclassified again."""
    known = {_SURVIVOR.id: report.Survivor("equivalent", "one element", "min(a) -> (max(a))")}
    assert report.class_of(_SURVIVOR, known) == "equivalent"
    assert report.class_of(replace(_SURVIVOR, before="min(b)"), known) == "unclassified"


def test_half_a_line_is_no_result(tmp_path: Path) -> None:
    """An interrupted session leaves its last line unfinished; the next one goes on before it."""
    [first, second, *_] = mutations()
    results = Results(tmp_path)
    for each in (first, second):
        results.add(_killed(each))
    results.path.write_text(results.path.read_text(encoding="utf-8")[:-5], encoding="utf-8")
    assert Results(tmp_path).of(first)
    assert Results(tmp_path).of(second) is None


def _killed(each: Mutation) -> Result:
    text = each.before, each.after, each.scope
    return Result(each.id, each.file, each.line, each.function, each.operator, *text, "killed")


def test_every_survivor_is_read() -> None:
    """Of the published results: each survivor has a class and a reason, and each class is one of the page's."""
    known = report.read_survivors()
    assert {each.kind for each in known.values()} <= set(report.CLASSES)
    assert all(each.reason for each in known.values())
    results = Results(report.SURVIVORS.parent).current(mutations())
    survived = [each for each in results if each.status == "survived"]
    assert [each.id for each in survived if report.class_of(each, known) == "unclassified"] == []
