"""Outcome: the findings of a gate, its exit code, and their form for people (Markdown) and machines (JSON)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from zerobench.gate.cases import label
from zerobench.gate.rules import Finding, exit_code
from zerobench.gate.timing import EFFECT, Round, Timed
from zerobench.results import Json

_WORDS = {0: "passed", 1: "FAILED", 2: "NOT ENOUGH MEASURED"}


@dataclass(frozen=True)
class Times:
    """The times of base and head, which alternated; ``untimed`` are the cases without a time from every process.

    Cases are named by subject and Scenario, in JSON. If nothing was timed at all, ``reason`` is the cause.
    """

    revision: str
    timed: Sequence[Timed]
    untimed: Sequence[str]
    rounds: Sequence[Round]
    reason: str = ""

    @property
    def code(self) -> int:
        """The resulting exit code; UNSURE does not affect it."""
        if any(each.verdict == "SLOWER" for each in self.timed):
            return 1
        return 2 if self.untimed or not self.timed else 0


@dataclass(frozen=True)
class Outcome:
    """Findings on the ``measured`` cases with numbers, times if requested, and the command to refresh the baseline."""

    measured: int
    findings: Sequence[Finding]
    times: Times | None
    refresh: str

    @property
    def code(self) -> int:
        """0: good; 1: a regression; 2: nothing was measured, or not enough."""
        codes = {exit_code(self.findings, self.measured), self.times.code if self.times else 0}
        return 1 if 1 in codes else max(codes)


def as_json(outcome: Outcome) -> Json:
    """Everything, each round's multiples included."""
    return {"outcome": _WORDS[outcome.code].lower(), "exit_code": outcome.code, **asdict(outcome)}


def render(outcome: Outcome) -> str:
    """For a pull request: the verdict, then a table for each kind of rule, then the remedy."""
    parts = [f"# Gate: {_WORDS[outcome.code]}\n\n{_headline(outcome)}"]
    if outcome.findings:
        parts.append(f"## Exact and bounded\n\n{_findings(outcome.findings)}")
    if outcome.times:
        parts.append(f"## Time, against {_cell(outcome.times.revision)}\n\n{_times(outcome.times)}")
    parts += _scenarios(outcome)
    if any(finding.code for finding in outcome.findings):
        parts.append(f"If this is meant, refresh the baseline and commit it:\n\n```\n{outcome.refresh}\n```")
    return "\n\n".join(parts) + "\n"


def _headline(outcome: Outcome) -> str:
    levels = [finding.level for finding in outcome.findings]
    told = [f"{levels.count(level)} {level}" for level in dict.fromkeys(levels)]
    verdicts = [each.verdict for each in outcome.times.timed] if outcome.times else []
    told += [f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts)]
    if outcome.times and outcome.times.reason:
        told.append("no times")
    return f"{outcome.measured} cases measured; {', '.join(told) if told else 'all as in the baseline'}."


def _findings(findings: Sequence[Finding]) -> str:
    headers = ["", "case", "metric", "base", "head", "difference", "rule"]
    order = sorted(findings, key=lambda finding: (1, 2, 0).index(finding.code))
    rows = [[f.level, f.case, f.metric, f.base, f.head, f.difference, f.rule] for f in order]
    return _table(headers, rows)


def _scenarios(outcome: Outcome) -> Iterator[str]:
    """The whole Scenario of every case that fails, once."""
    failing = [(finding.case, finding.scenario) for finding in outcome.findings if finding.code]
    if outcome.times:
        slower = (each.case for each in outcome.times.timed if each.verdict == "SLOWER")
        named = (json.loads(case) for case in (*slower, *outcome.times.untimed))
        failing += [(label(subject, scenario), scenario) for subject, scenario in named]
    lines = [f"- {_cell(case)}: `{json.dumps(scenario, sort_keys=True)}`" for case, scenario in failing]
    if lines:
        yield "\n".join(["Scenarios:", "", *dict.fromkeys(lines)])


_TIMES_LEGEND = (
    "base, head: the step of fresh processes, alternating, as a multiple of compute-only's; medians.\n"
    f"SLOWER: the median ratio is beyond {EFFECT:.0%} and the floor, and its interval is above 1.\n"
    "UNSURE does not block: the pairs stray too far here and now to tell.\n"
    "not timed: a process has no time of the case, or the last losses of base and head are more than 1 % apart."
)


def _times(times: Times) -> str:
    if times.reason:
        from zerobench.report.markdown import fence  # as tabulate below

        return f"Not measured:\n\n{fence(times.reason)}"
    headers = ["verdict", "case", "head / base", "99 % interval", "floor (A/A)", "base", "head", "pairs"]
    rows = [
        [
            each.verdict,
            label(*json.loads(each.case)),
            f"{each.ratio:.3f}",
            f"{each.low:.3f} to {each.high:.3f}",
            f"{each.floor:.1%}",
            f"{each.base:.3f}",
            f"{each.head:.3f}",
            str(each.pairs),
        ]
        for each in times.timed
    ]
    rows += [["not timed", label(*json.loads(case)), *["-"] * 6] for case in times.untimed]
    return f"{_table(headers, rows)}\n\n{_TIMES_LEGEND}"


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from tabulate import tabulate  # the command line starts without it

    cells = [[_cell(text) for text in row] for row in rows]
    return tabulate(cells, headers, tablefmt="pipe", disable_numparse=True)


def _cell(text: str) -> str:
    """One line of plain text, escaped for Markdown."""
    line = " ".join(text.split())
    return "".join(f"\\{sign}" if sign in "\\|`*_<>[]" else sign for sign in line)
