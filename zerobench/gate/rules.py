"""Rules: exact numbers must be equal, bounded numbers must stay within their bound, and no number may be missing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from zerobench.gate.baseline import Baseline
from zerobench.gate.cases import BUDGET, TOTAL, GatedCase
from zerobench.results import Json
from zerobench.results.comparison import Values, furthest, growth
from zerobench.scenario import Scenario
from zerobench.verdict import PASSED

#: better fails as well: a gain that is not committed can be lost again unnoticed.
Level = Literal["regression", "better", "unmeasured", "warning", "not comparable"]
#: A metric warns beyond this share of its bound.
WARN = 0.8

EXACT = "exact: equal to the baseline on every rank"
BOUNDED = f"bounded: fails beyond 100 %, warns beyond {WARN:.0%}"
VERDICT = "a right case stays right"
MEASURED = "every entry of the baseline is measured"
LISTED = "every case that is measured is in the baseline"
BITS = "exact: the same bits on the same platform"
EXACT_DATA = "exact: no sum of these data is rounded, so that the bits are the same on every machine"


@dataclass(frozen=True)
class Finding:
    """One metric of one case that breaks a rule, in words; ``base`` is the baseline's value."""

    level: Level
    case: str
    scenario: Json
    metric: str
    base: str
    head: str
    difference: str
    rule: str

    @property
    def code(self) -> int:
        """The resulting exit code."""
        return {"regression": 1, "better": 1, "unmeasured": 2, "warning": 0, "not comparable": 0}[self.level]


def find(baseline: Baseline, head: Mapping[str, GatedCase], platform: Json) -> list[Finding]:
    """The findings in the measured cases."""
    found: list[Finding] = []
    for name, base in baseline.cases.items():
        found.extend(_case(base, head[name], baseline.platform, platform) if name in head else [_gone(base)])
    return found + [_unlisted(case) for name, case in head.items() if name not in baseline.cases]


def exit_code(findings: Sequence[Finding], measured: int) -> int:
    """0: good; 1: a regression, or a gain that is not committed; 2: nothing was measured, or not enough."""
    codes = {finding.code for finding in findings}
    if 1 in codes:
        return 1
    return 2 if 2 in codes or not measured else 0


def _gone(base: GatedCase) -> Finding:
    difference = "an entry of the baseline that matches nothing"
    return Finding("unmeasured", base.label, base.scenario, "case", base.verdict, "not measured", difference, MEASURED)


def _unlisted(case: GatedCase) -> Finding:
    difference = "new: nothing watches it; commit it"
    return Finding("regression", case.label, case.scenario, "case", "not there", case.verdict, difference, LISTED)


def _case(base: GatedCase, head: GatedCase, platform: Json, here: Json) -> Iterator[Finding]:
    if (base.subject, _whole(base.scenario)) != (head.subject, _whole(head.scenario)):
        shown = base.label, head.label, "the id is that of the baseline, the case is another one", MEASURED
        yield Finding("unmeasured", base.label, base.scenario, "case", *shown)
        return
    if base.verdict != head.verdict:
        reason = _first_line(head.reason)
        shown = base.verdict, head.verdict, reason, VERDICT
        yield Finding(_level(base, head), base.label, base.scenario, "verdict", *shown)
    if base.verdict in PASSED and head.verdict in PASSED:
        yield from _exact(base, head)
        yield from _bounded(base, head)
        yield from _digests(base, head, platform, here)


def _whole(scenario: Json) -> Scenario:
    """With the defaults that the JSON leaves out."""
    return Scenario.from_json(json.dumps(scenario))


def _level(base: GatedCase, head: GatedCase) -> Level:
    """The level of a changed verdict. If a case was right and is not judged now, the measurement is incomplete."""
    if head.verdict == "right" or (head.verdict == "measured" and base.verdict != "right"):
        return "better"
    return "unmeasured" if head.verdict in ("not measured", "measured") else "regression"


def _first_line(text: str) -> str:
    """The first line, for a table; reports have the rest."""
    return next(iter(text.splitlines()), "")


def _exact(base: GatedCase, head: GatedCase) -> Iterator[Finding]:
    for metric in dict.fromkeys([*base.exact, *head.exact]):
        before, after = _value(base, metric), _value(head, metric)
        if after is None:
            yield _lost(base, metric, before)
        elif before is None or len(before) != len(after):
            old = "not there" if before is None else str(list(before))
            yield _new(base, metric, str(list(after)), EXACT, old)
        elif before != after:
            yield _changed(base, metric, before, after)


def _value(case: GatedCase, metric: str) -> Values | None:
    """If a collective is missing in a ledger, it was not called; any other missing value was not measured."""
    if metric.startswith("traffic: ") and metric not in case.exact:
        return tuple(0 for _ in case.exact[TOTAL]) if TOTAL in case.exact else None
    return case.exact.get(metric)


def _changed(base: GatedCase, metric: str, before: Values, after: Values) -> Finding:
    """The finding on the rank with the largest change."""
    grown = growth(before, after)
    rank = furthest(grown)
    what = "calls" if metric.endswith(" calls") else "bytes"
    difference = f"{grown[rank]:+,} {what} on rank {rank}"
    level: Level = "regression" if max(grown) > 0 else "better"
    if level == "better":
        difference += ": better, commit it"
    return _of(base, level, metric, f"{before[rank]:,}", f"{after[rank]:,}", difference, EXACT)


def _bounded(base: GatedCase, head: GatedCase) -> Iterator[Finding]:
    for metric, bounds in base.bounded.items():
        values = head.bounded.get(metric)
        if values is None or len(values) != len(bounds):
            yield _lost(base, metric, bounds)
            continue
        shares = [(value or 0) / (bound or 1) for value, bound in zip(values, bounds, strict=True)]
        rank = shares.index(max(shares))
        if shares[rank] > WARN:
            form = ".3g" if metric == BUDGET else ","
            difference = f"{shares[rank]:.1%} of the bound on rank {rank}"
            level: Level = "regression" if shares[rank] > 1 else "warning"
            shown = f"at most {bounds[rank]:{form}}", f"{values[rank]:{form}}"
            yield _of(base, level, metric, *shown, difference, BOUNDED)
    for metric, new in head.bounded.items():
        if metric not in base.bounded:
            yield _new(base, metric, str(list(new)), BOUNDED)


def _digests(base: GatedCase, head: GatedCase, platform: Json, here: Json) -> Iterator[Finding]:
    other = [f"{name} {here.get(name)}, not {platform[name]}" for name in platform if platform[name] != here.get(name)]
    rule = EXACT_DATA if base.exact_data else BITS
    for metric, before in base.digests.items():
        after = head.digests.get(metric)
        if after is None:
            yield _lost(base, metric, before[:12])
        elif other and not base.exact_data:
            yield _of(base, "not comparable", metric, before[:12], after[:12], "; ".join(other), rule)
        elif before != after:
            yield _of(base, "regression", metric, before[:12], after[:12], "other bits; commit them if meant", rule)
    for metric, new in head.digests.items():
        if metric not in base.digests:
            yield _new(base, metric, new[:12], rule)


def _new(base: GatedCase, metric: str, after: str, rule: str, before: str = "not there") -> Finding:
    return _of(base, "regression", metric, before, after, "new: commit it", rule)


def _lost(base: GatedCase, metric: str, before: object) -> Finding:
    return _of(base, "unmeasured", metric, str(before), "not measured", "a metric that matches nothing", MEASURED)


def _of(case: GatedCase, level: Level, metric: str, base: str, head: str, difference: str, rule: str) -> Finding:
    return Finding(level, case.label, case.scenario, metric, base, head, difference, rule)
