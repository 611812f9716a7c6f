"""Comparing two results: the reported changes, their names, and the exit code."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

from zerobench.results import Json
from zerobench.results.comparison import Incomparable, compare
from zerobench.results.files import read
from zerobench.suites.project.reports import sample

#: Of a real run, in schema 1.
_PUBLISHED = Path(__file__).parent / "schema-1.json"


@pytest.fixture
def base() -> Json:
    """A real run: the reference at four stages, three peers and compute-only; the ids are the display names."""
    value = read(_PUBLISHED)
    for case in value["cases"]:
        case["id"] = str(case["stage"])
    return value


@pytest.fixture
def head(base: Json) -> Json:
    """The same, to be changed."""
    return copy.deepcopy(base)


def _crash(case: Json, verdict: str = "crashed") -> None:
    case.update(verdict=verdict, reason="rank 1 was killed", judgement=None, loss=None)
    case.update(memory=None, traffic=None, time=None)


def test_the_same_is_good(base: Json, head: Json) -> None:
    """No change is reported, and every case was compared, compute-only among them."""
    found = compare(base, head)
    assert found.exit_code == 0
    assert len(found.compared) == len(base["cases"])
    assert (found.changes, found.newly_failing, found.fixed, found.new, found.gone, found.unmeasured) == ((),) * 6
    assert {timing.ratio for timing in found.timings} == {1.0}


def test_one_more_byte_on_one_rank(base: Json, head: Json) -> None:
    """The report names case, metric and rank: an increase is a regression, a decrease a change to report."""
    head["cases"][2]["memory"]["measured"][1]["optimizer"] += 1
    found = compare(base, head)
    [change] = found.changes
    assert (change.case, change.metric, change.rank) == ("reference stage 2 (2)", "memory: optimizer", 1)
    assert change.head[1] == (change.base[1] or 0) + 1
    assert (found.regressions, found.exit_code) == ((change,), 1)
    [shrunk] = compare(head, base).changes
    assert (shrunk.rank, shrunk.worse, compare(head, base).exit_code) == (1, False, 0)


def test_one_more_collective(base: Json, head: Json) -> None:
    """One that the base never calls counts from zero; if the head does not call it, that is an improvement."""
    for ledger in head["cases"][0]["traffic"]["measured"]:
        ledger["broadcast"] = {"calls": 1, "sent": 0, "received": 0}
    found = compare(base, head)
    assert [(change.metric, change.base, change.head) for change in found.changes] == [
        ("traffic: broadcast calls", (0, 0), (1, 1))
    ]
    assert found.exit_code == 1
    assert compare(head, base).exit_code == 0


def test_a_higher_peak_is_told_but_bounded(base: Json, head: Json) -> None:
    """A larger share of the error budget is reported, too; the judge knows the bound."""
    head["cases"][0]["memory"]["measured"][0]["peak"] += 1
    head["cases"][1]["judgement"]["budget_used"] += 0.1
    found = compare(base, head)
    assert [(change.metric, change.kind) for change in found.changes] == [
        ("memory: peak", "bounded"), ("budget used", "bounded")
    ]  # fmt: skip
    assert found.exit_code == 0


@pytest.mark.parametrize("verdict", ["raised", "crashed", "timeout", "unsupported"])
def test_newly_failing_and_fixed(base: Json, head: Json, verdict: str) -> None:
    """Each verdict as it is; in the other direction it is fixed. Its metrics are not also reported as missing."""
    _crash(head["cases"][3], verdict)
    found = compare(base, head)
    [broken] = found.newly_failing
    assert (broken.case, broken.base, broken.head) == ("reference stage 3 (3)", "right", verdict)
    assert broken.reason == "rank 1 was killed"
    assert (found.exit_code, found.unmeasured) == (1, ())
    back = compare(head, base)
    assert ([each.case for each in back.fixed], back.exit_code) == (["reference stage 3 (3)"], 0)


def test_wrong_is_newly_failing(base: Json, head: Json) -> None:
    """The message gives the reason."""
    head["cases"][0]["verdict"] = "wrong"
    head["cases"][0]["judgement"] |= {"bitwise": False, "message": "reference: WRONG"}
    [broken] = compare(base, head).newly_failing
    assert (broken.head, broken.reason) == ("wrong", "reference: WRONG")


def test_failing_as_before(base: Json) -> None:
    """The failure is reported, and is no regression."""
    _crash(base["cases"][0])
    found = compare(base, base)
    assert [each.case for each in found.still_failing] == ["reference stage 0 (0)"]
    assert found.exit_code == 0


def test_new_and_gone(base: Json, head: Json) -> None:
    """If a case is gone, less was measured than before; a new case is good."""
    del head["cases"][4]
    found = compare(base, head)
    assert (found.gone, found.exit_code) == (("torch-ddp stage 0 (0)",), 2)
    assert (compare(head, base).new, compare(head, base).exit_code) == (("torch-ddp stage 0 (0)",), 0)


@pytest.mark.parametrize("part", ["memory", "traffic"])
def test_a_metric_that_is_gone(base: Json, head: Json, part: str) -> None:
    """If the head lacks a ledger that the base measured, the result is not good."""
    head["cases"][0][part] = None
    found = compare(base, head)
    assert {(case, metric.split(":")[0]) for case, metric in found.unmeasured} == {("reference stage 0 (0)", part)}
    assert (found.changes, found.exit_code) == ((), 2)


def test_a_metric_that_is_new(base: Json, head: Json) -> None:
    """A metric that the base's ledger lacks was 0: it has grown. A new ledger is reported."""
    for rank in head["cases"][1]["memory"]["measured"]:
        rank["host"] = 500
    base["cases"][0]["traffic"] = None
    found = compare(base, head)
    assert found.appeared == (("reference stage 0 (0)", "traffic"), ("reference stage 1 (1)", "memory: host"))
    [change] = found.changes
    assert (change.case, change.metric, change.base, change.head) == (
        "reference stage 1 (1)", "memory: host", (0, 0), (500, 500)
    )  # fmt: skip
    assert (found.regressions, found.exit_code) == ((change,), 1)
    del head["cases"][1]
    del base["cases"][1]
    assert compare(base, head).exit_code == 0


def test_a_rank_that_holds_nothing(base: Json, head: Json) -> None:
    """If another rank holds bytes, those are compared."""
    for value, held in ((base, (None, 500)), (head, (None, 501))):
        for rank, size in zip(value["cases"][0]["memory"]["measured"], held, strict=True):
            rank["host"] = size
    [change] = compare(base, head).changes
    assert (change.metric, change.base, change.head) == ("memory: host", (0, 500), (0, 501))


def test_not_measured_any_more(base: Json, head: Json) -> None:
    """Counts as gone."""
    _crash(head["cases"][0], "not measured")
    assert (compare(base, head).gone, compare(base, head).exit_code) == (("reference stage 0 (0)",), 2)


def test_other_bits_on_the_same_platform(base: Json, head: Json) -> None:
    """A regression; on another platform no statement."""
    base["cases"][0]["digest"], head["cases"][0]["digest"] = "a", "b"
    assert (compare(base, head).moved, compare(base, head).exit_code) == (("reference stage 0 (0)",), 1)
    head["environment"]["cpu"] = "another"
    assert (compare(base, head).moved, compare(base, head).exit_code) == ((), 0)


def test_bits_that_are_gone_or_held_elsewhere(base: Json, head: Json) -> None:
    """An engine that no longer promises bits has lost a measurement; other owners of the states are other bits."""
    base["cases"][0] |= {"digest": "a", "held": ["b", "c"]}
    head["cases"][0] |= {"digest": None, "held": None}
    found = compare(base, head)
    assert found.unmeasured == (("reference stage 0 (0)", "digest"), ("reference stage 0 (0)", "held"))
    assert found.exit_code == 2
    head["cases"][0] |= {"digest": "a", "held": ["c", "b"]}
    assert (compare(base, head).moved, compare(base, head).exit_code) == (("reference stage 0 (0)",), 1)


def test_a_gpu_is_the_same_at_another_temperature(base: Json, head: Json) -> None:
    """Clocks, power and other processes are not the platform; its name and driver are."""
    base["cases"][0]["digest"], head["cases"][0]["digest"] = "a", "b"
    for value, heat in ((base, "35"), (head, "61")):
        value["environment"]["gpu"] = sample.gpu(heat)
    assert compare(base, head).moved == ("reference stage 0 (0)",)
    head["environment"]["gpu"]["names"] = ["another"]
    assert compare(base, head).moved == ()


def test_nothing_measured(base: Json, head: Json) -> None:
    """An empty head, and one in which every case failed as before."""
    head["cases"] = []
    assert compare(base, head).exit_code == 2
    for case in base["cases"]:
        _crash(case)
    assert compare(base, base).exit_code == 2


def test_compute_only_is_no_engine(base: Json) -> None:
    """If it alone runs, nothing was compared."""
    for case in base["cases"]:
        if case["subject"] != "compute-only":
            _crash(case)
    assert compare(base, base).compared
    assert compare(base, base).exit_code == 2


def test_times_judge_nothing(base: Json, head: Json) -> None:
    """If a time is ten times longer, the ratio is ten, between its quartiles, and the result is good."""
    for case in head["cases"]:
        case["time"]["median"] *= 10
        case["time"]["quartiles"] = [10 * quartile for quartile in case["time"]["quartiles"]]
    found = compare(base, head)
    assert found.exit_code == 0
    for timing in found.timings:
        assert timing.ratio == pytest.approx(10)
        assert timing.low < timing.ratio < timing.high


def _rename(value: Json) -> None:
    for index, case in enumerate(value["cases"]):
        case["id"] = f"case {index}"


_OTHERS: dict[str, Callable[[Json], object]] = {
    "schema differs: 3 in the base, 4 in the head": lambda value: value.update(schema=4),
    "case version differs: None in the base, 3 in the head": lambda value: value.update(case_version=3),
    "settings, seed, differs: 0 in the base, 7 in the head": lambda value: value["settings"].update(seed=7),
    "settings, parameters, differs": lambda value: value["settings"].update(parameters=1),
    "text, sha256, differs": lambda value: value["text"].update(sha256="0"),
    "the Scenario of reference stage 1 (1), seed, differs: None in the base, 7": lambda value: value["cases"][1][
        "scenario"
    ].update(seed=7),
    "both: the base has reference stage 0 (0), reference stage 1 (1), reference stage 2 (2) and 5 more": _rename,
    "torch-ddp stage 0 (0) is twice in one file": lambda value: value["cases"].append(dict(value["cases"][4])),
}


@pytest.mark.parametrize("says", _OTHERS)
def test_refuses_what_cannot_be_compared(base: Json, head: Json, says: str) -> None:
    """The error names the difference."""
    _OTHERS[says](head)
    with pytest.raises(Incomparable) as refused:
        compare(base, head)
    assert says in str(refused.value)
