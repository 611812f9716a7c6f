"""The command ``zerobench gate``: measures, or takes results; compares them with a baseline and another revision."""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
from pathlib import Path

from zerobench.errors import Unmeasured, UsageError
from zerobench.gate import grid, outcome, revisions, rules, timing
from zerobench.gate.baseline import Baseline, check_replaceable
from zerobench.gate.cases import common_platform, gated_cases
from zerobench.gate.outcome import Outcome, Times
from zerobench.machine.files import check_writable
from zerobench.results import Json
from zerobench.results.files import read
from zerobench.results.identity import COMPUTE_ONLY

#: The most by which the last losses of two revisions differ that train alike, as a share: other orders of additions
#: change the last digits.
_APART = 0.01


def execute(given: argparse.Namespace) -> int:
    """Gate, print and write the summary; returns the exit code.

    Raises:
        UsageError: if the baseline, the results, the summary or the revision is invalid.
        Unmeasured: if a run produced no results.
    """
    if given.update:
        return _update(given)
    page = _page(given)
    if page:
        _append(page, "")  # so that an invalid file is reported before measuring
    found = _gate(given)
    text = outcome.render(found)
    print(json.dumps(outcome.as_json(found)) if given.json else text, end="\n" if given.json else "")
    if page:
        _append(page, text)
    return found.code


def _gate(given: argparse.Namespace) -> Outcome:
    baseline = Baseline.read(given.baseline)
    if given.time_against:  # before measuring
        revisions.commit(revisions.repository(Path.cwd()), given.time_against)
    values = _results(given)
    head = gated_cases(values)
    findings = rules.find(baseline, head, common_platform(values))
    times = _timed(given.time_against, given.subject) if given.time_against else None
    return Outcome(sum(case.measured for case in head.values()), findings, times, _refresh(given))


def _update(given: argparse.Namespace) -> int:
    """Make the baseline from the present measurements."""
    if given.time_against:
        raise UsageError("--update with --time-against: no baseline has times, so that there is nothing to update")
    check_writable(given.baseline.parent, [given.baseline.name])
    check_replaceable(given.baseline)
    values = _results(given)
    head = gated_cases(values)
    Baseline.of(head, common_platform(values)).write(given.baseline)
    measured = sum(case.measured for case in head.values())
    told = f"{len(head)} cases, {measured} of them with numbers"
    print(f"zerobench: wrote {given.baseline}, {told}; read its difference before it is committed")
    return 0


def _results(given: argparse.Namespace) -> list[Json]:
    if given.results:
        return [read(path) for path in given.results]
    return [revisions.measure(Path.cwd(), arguments) for arguments in grid.accounted(given.subject)]


def _timed(revision: str, subject: str) -> Times:
    """If the base cannot be timed, the findings of the rules remain."""
    try:
        return _times(revision, subject)
    except Unmeasured as error:
        return Times(revision, [], [], [], str(error))


def _times(revision: str, subject: str) -> Times:
    """The head is the working tree, committed or not."""
    root = revisions.repository(Path.cwd())
    with revisions.worktree(root, revision) as base:
        trees = {"base": base, "head": root}
        for tree in trees.values():
            revisions.demand_own(tree, subject)
        losses: dict[timing.Side, dict[str, float]] = {"base": {}, "head": {}}

        def run(side: timing.Side) -> dict[str, float]:
            results = revisions.measure(trees[side], grid.timed(subject))
            losses[side] |= _last_losses(results)
            return _multiples(results)

        found, rounds = timing.measure(run)
    timed = [each for each in found if _alike(losses["base"].get(each.case), losses["head"].get(each.case))]
    everywhere = {each.case for each in timed}
    seen = dict.fromkeys(case for each in rounds for side in (each.base, each.head) for case in side)
    return Times(revision, timed, [case for case in seen if case not in everywhere], rounds)


def _last_losses(results: Json) -> dict[str, float]:
    """The mean loss of the last step of every case that ran, if it is finite."""
    ran = [case for case in results["cases"] if case["loss"] and case["loss"]["last"] is not None]
    return {_name(case): case["loss"]["last"] for case in ran}


def _alike(base: float | None, head: float | None) -> bool:
    """Whether two revisions have trained alike: a step that does less has no time to compare."""
    return base is not None and head is not None and math.isclose(base, head, rel_tol=_APART)


def _name(case: Json) -> str:
    return json.dumps([case["subject"], case["scenario"]], sort_keys=True)


def _multiples(results: Json) -> dict[str, float]:
    """The step time of every case that ran, as a multiple of compute-only's."""
    ran = [case for case in results["cases"] if case["subject"] != COMPUTE_ONLY and case["time"]]
    named = {_name(case): case["time"]["ratio"] for case in ran}
    return {name: ratio for name, ratio in named.items() if ratio}


def _refresh(given: argparse.Namespace) -> str:
    """The command that makes the baseline from the gated results."""
    command: list[str] = ["zerobench", "gate", "--baseline", str(given.baseline)]
    if given.subject != grid.SUBJECT:
        command += ["--subject", given.subject]
    if given.results:
        command += ["--results", *map(str, given.results)]
    return shlex.join([*command, "--update"])


def _page(given: argparse.Namespace) -> Path | None:
    """The file of the summary: the requested one, or the page of a GitHub job."""
    named = given.summary or os.environ.get("GITHUB_STEP_SUMMARY")
    return Path(named) if named else None


def _append(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as page:
            page.write(text)
    except OSError as error:
        raise UsageError(f"cannot write the summary to {str(path)!r}: {error.strerror}") from None
