"""The command ``zerobench gate``: measures, or takes results, and holds them to a baseline and to another revision."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from pathlib import Path
from typing import Any

from zerobench import report
from zerobench.bench.rounds import COMPUTE_ONLY
from zerobench.errors import Unmeasured, UsageError
from zerobench.gate import grid, outcome, revisions, rules, timing
from zerobench.gate.baseline import Baseline
from zerobench.gate.cases import cases, platform
from zerobench.gate.outcome import Outcome, Times
from zerobench.results.load import read

Json = dict[str, Any]


def gate(given: argparse.Namespace) -> int:
    """Gate, print and write the summary; returns the exit code.

    Raises:
        UsageError: a baseline, results, a summary or a revision that cannot be.
        Unmeasured: a run came to no results.
    """
    if given.update:
        return _update(given)
    page = _page(given)
    if page:
        _append(page, "")  # so that what cannot be is said before anything is measured
    found = _gate(given)
    text = outcome.markdown(found)
    print(json.dumps(outcome.as_json(found)) if given.json else text, end="\n" if given.json else "")
    if page:
        _append(page, text)
    return found.code


def _gate(given: argparse.Namespace) -> Outcome:
    baseline = Baseline.read(given.baseline)
    if given.time_against:  # before anything is measured
        revisions.commit(revisions.repository(Path.cwd()), given.time_against)
    values = _results(given)
    head = cases(values)
    findings = rules.judge(baseline, head, platform(values))
    times = _timed(given.time_against, given.subject) if given.time_against else None
    return Outcome(sum(case.measured for case in head.values()), findings, times, _refresh(given))


def _update(given: argparse.Namespace) -> int:
    """Make the baseline of what is measured now."""
    if given.time_against:
        raise UsageError("--update with --time-against: no baseline has times, so that there is nothing to update")
    report.writable(given.baseline.parent, [given.baseline.name])
    values = _results(given)
    head = cases(values)
    Baseline.of(head, platform(values)).write(given.baseline)
    measured = sum(case.measured for case in head.values())
    told = f"{len(head)} cases, {measured} of them with numbers"
    print(f"zerobench: wrote {given.baseline}, {told}; read its difference before it is committed")
    return 0


def _results(given: argparse.Namespace) -> list[Json]:
    if given.results:
        return [read(path) for path in given.results]
    return [revisions.measure(Path.cwd(), arguments) for arguments in grid.accounted(given.subject)]


def _timed(revision: str, subject: str) -> Times:
    """A base that cannot be timed hides nothing of what the rules found."""
    try:
        return _times(revision, subject)
    except Unmeasured as error:
        return Times(revision, [], [], [], str(error))


def _times(revision: str, subject: str) -> Times:
    """The head is what lies in the repository now, committed or not."""
    root = revisions.repository(Path.cwd())
    with revisions.worktree(root, revision) as base:
        trees = {"base": base, "head": root}
        for tree in trees.values():
            revisions.demand_own(tree, subject)
        timed, rounds = timing.measure(lambda side: _multiples(revisions.measure(trees[side], grid.timed(subject))))
    everywhere = {each.case for each in timed}
    seen = dict.fromkeys(case for each in rounds for side in (each.base, each.head) for case in side)
    return Times(revision, timed, [case for case in seen if case not in everywhere], rounds)


def _multiples(results: Json) -> dict[str, float]:
    """The step of every case that ran, as a multiple of compute-only's; a base may be of an older schema."""
    rows = [row for row in results["rows"] if row["subject"] != COMPUTE_ONLY and row["time"] and row["time"]["ratio"]]
    return {json.dumps([row["subject"], row["scenario"]], sort_keys=True): row["time"]["ratio"] for row in rows}


def _refresh(given: argparse.Namespace) -> str:
    """The command that makes the baseline of what was gated."""
    command: list[str] = ["zerobench", "gate", "--baseline", str(given.baseline)]
    if given.subject != grid.SUBJECT:
        command += ["--subject", given.subject]
    if given.results:
        command += ["--results", *map(str, given.results)]
    return shlex.join([*command, "--update"])


def _page(given: argparse.Namespace) -> Path | None:
    """Where the summary goes: the file that is asked for, or the page of a GitHub job."""
    named = given.summary or os.environ.get("GITHUB_STEP_SUMMARY")
    return Path(named) if named else None


def _append(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as page:
            page.write(text)
    except OSError as error:
        raise UsageError(f"cannot write the summary to {str(path)!r}: {error.strerror}") from None


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of ``zerobench gate``."""
    parser.description = (
        "Holds bytes, calls and bits to a committed baseline, peaks and errors to their bounds, and times to another "
        "revision that is measured by turns. 0: good; 1: a regression; 2: not enough was measured; 3: the input."
    )
    add = parser.add_argument
    add("--baseline", type=Path, required=True, metavar="FILE", help="such as reports/baselines/cpu.json")
    add(
        "--results",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="gate these; default: measure a small grid",
    )
    add("--time-against", metavar="REV", help="measure times, too, by turns with this git revision")
    add("--update", action="store_true", help="make the baseline of what is measured")
    add("--subject", default=grid.SUBJECT, metavar="NAME", help=f"default: {grid.SUBJECT}")
    add("--summary", type=Path, metavar="FILE", help="append the Markdown to it; default: $GITHUB_STEP_SUMMARY, if set")
    add("--json", action="store_true", help="print JSON, not Markdown")
