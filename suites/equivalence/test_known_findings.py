"""Each known finding of the engine under test is still there; if one is repaired, its test fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zerobench import findings, subjects
from zerobench.bench.replay import compare_again
from zerobench.errors import RankFailure
from zerobench.findings import KnownFinding
from zerobench.judge.command import ReplayCommand
from zerobench.ranks import Pool, RankFault
from zerobench.subject import Subject
from zerobench.suites.support.trials import IDLE, TIME_LIMIT, Trials

_KINDS = {"raised": "raised", "crashed": "died", "timeout": "hung"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each known finding that a Scenario repeats."""
    subject = subjects.load(metafunc.config.getoption("subject"))
    found = [each for each in _known(subject) if each.scenario and not subject.not_offered(each.scenario)]
    metafunc.parametrize("finding", found, ids=[each.slug for each in found])


def _known(subject: type[Subject]) -> list[KnownFinding]:
    """Those of training; suites/accounting has those of costs."""
    return [each for each in findings.known(subject) if not each.costs]


def test_known_finding_is_there(trials: Trials, finding: KnownFinding) -> None:
    """Its Scenario fails in the stated way; if not, the engine is repaired, and the finding must go.

    If another finding describes the Scenario too, as one of a setting of the engine does, its failure may come first. A
    finding of the engine that a subject derives from may be missing in the subject's settings.
    """
    assert finding.scenario is not None
    assert finding.describes(finding.scenario)
    got = _outcome(trials, ReplayCommand(finding.scenario, trials.name))
    if got == "right" and trials.name not in finding.subjects:
        pytest.skip(f"{trials.name} does not have the finding {finding.slug} of {', '.join(finding.subjects)}")
    assert got != "right", f"repaired: remove the finding {finding.slug}"
    others = [each for each in _known(trials.subject) if each is not finding and each.describes(finding.scenario)]
    assert others or got in (finding.kind, *finding.also) or {got, finding.kind} == {"hung", "died"}, (
        f"{finding.slug}: {got}, but zerobench/findings/known.json says {finding.kind}"
    )


def _outcome(trials: Trials, command: ReplayCommand) -> str:
    """``right``, or the kind of the failure: of the whole run, or of a step."""
    by_step = replace(command, each_step=True)
    with Pool(command.scenario.world, idle=IDLE) as ranks:  # its own, as ranks may hang or die
        try:
            judged = (compare_again(each, ranks, TIME_LIMIT).right for each in (command, by_step))
            return "right" if all(judged) else "wrong"
        except RankFault as fault:
            return _KINDS[fault.kind]
        except RankFailure:
            return "died"
