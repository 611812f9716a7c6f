"""Judged: the rules to which the accounting held the engine in a test, and the findings that it set aside.

The end of a run lists them, because a suite that judges nothing passes everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from zerobench.scenario import Scenario

#: The name of the test's property that carries its record to the process that prints the summary.
PROPERTY = "zerobench_judged"
_OUTCOMES = ("passed", "failed", "skipped")


@dataclass
class Rule:
    """The Scenarios that a rule judged, and the largest number as a share of its bound; None if it must be equal."""

    scenarios: set[str] = field(default_factory=set)
    share: float | None = None


@dataclass
class Judged:
    """Of the running test: its rules by their words, and the known findings whose Scenarios it set aside."""

    rules: dict[str, Rule] = field(default_factory=dict)
    set_aside: set[str] = field(default_factory=set)

    def note(self, scenario: Scenario, rule: str, share: float | None = None) -> None:
        """A number of the Scenario is held to a rule; ``share`` is its part of a bound."""
        found = self.rules.setdefault(rule, Rule())
        found.scenarios.add(scenario.to_json())
        if share is not None:
            found.share = max(share, found.share or 0.0)

    def exported(self) -> dict[str, Any]:
        """The record, which another process may print."""
        rules = {words: [len(rule.scenarios), rule.share] for words, rule in self.rules.items()}
        return {"rules": rules, "set_aside": sorted(self.set_aside)}


#: Of the test under way.
current = Judged()


def restart() -> None:
    """A test begins."""
    vars(current).update(vars(Judged()))


def summary(terminalreporter: pytest.TerminalReporter) -> Iterator[str]:
    """Each test, by its name without arguments: its rules, with the largest share of a bound; the findings; or, if it
    judged nothing, the reason."""
    for name, reports in _by_test(terminalreporter).items():
        records = [found for report in reports if (found := _record(report))]
        if not records:
            continue
        words = name.removeprefix("test_").replace("_", " ")
        rules = list(_rules([record["rules"] for record in records]))
        yield from (f"judged {words}: {rule}" for rule in rules)
        for slug in sorted({slug for record in records for slug in record["set_aside"]}):
            yield f"set aside in {words}: Scenarios of the known finding {slug}"
        if not rules:
            yield f"not judged {words}: {_reason(reports)}"


def _by_test(terminalreporter: pytest.TerminalReporter) -> dict[str, list[pytest.TestReport]]:
    found: dict[str, list[pytest.TestReport]] = {}
    for outcome in _OUTCOMES:
        for report in terminalreporter.getreports(outcome):
            found.setdefault(report.nodeid.rpartition("::")[2].partition("[")[0], []).append(report)
    return found


def _record(report: pytest.TestReport) -> Any:
    """The record of a test's report, or None."""
    return dict(report.user_properties).get(PROPERTY)


def _rules(records: Sequence[Mapping[str, Sequence[Any]]]) -> Iterator[str]:
    for words in dict.fromkeys(words for record in records for words in record):
        found = [record[words] for record in records if words in record]
        shares = [share for _, share in found if share is not None]
        held = f"at most {max(shares):.0%} of {words}" if shares else words
        yield f"{sum(count for count, _ in found)} Scenarios, {held}"


def _reason(reports: Sequence[pytest.TestReport]) -> str:
    said = [report.longrepr[2] for report in reports if isinstance(report.longrepr, tuple)]
    if said:
        return max(set(said), key=said.count).removeprefix("Skipped: ")
    return "it failed before" if any(report.outcome == "failed" for report in reports) else "there was no number"
