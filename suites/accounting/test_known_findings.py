"""Each known finding of costs is still there; if one is repaired, its test fails."""

from __future__ import annotations

import pytest

from zerobench import findings, subjects
from zerobench.errors import Disagreement
from zerobench.findings import KnownFinding
from zerobench.scenario import Scenario
from zerobench.suites.accounting.costs import COSTS
from zerobench.suites.accounting.network import wire
from zerobench.suites.support import judged
from zerobench.suites.support.trials import Trials


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each cost of each known finding of the engine under test that a Scenario repeats."""
    subject = subjects.load(metafunc.config.getoption("subject"))
    known = [each for each in findings.known(subject) if each.scenario and not subject.not_offered(each.scenario)]
    found = [(each, cost) for each in known for cost in each.costs]
    metafunc.parametrize(("finding", "cost"), [pytest.param(*one, marks=_marks(one[1]), id=_id(*one)) for one in found])


def _marks(cost: str) -> tuple[pytest.MarkDecorator, ...]:
    """The wire carries the bytes of other tests, too."""
    return (pytest.mark.alone,) if cost == wire.__name__ else ()


def _id(finding: KnownFinding, cost: str) -> str:
    return f"{finding.slug}-{cost}"


def test_known_finding_is_there(trials: Trials, finding: KnownFinding, cost: str) -> None:
    """Its Scenario has the cost; if not, the engine is repaired, and the finding must go.

    A finding of the engine that a subject derives from may be missing in the subject's settings.
    """
    assert finding.scenario is not None
    assert finding.describes(finding.scenario)
    there = _exceeds(trials, finding.scenario, cost)
    if not there and trials.name not in finding.subjects:
        pytest.skip(f"{trials.name} does not have the finding {finding.slug} of {', '.join(finding.subjects)}")
    assert there, f"repaired: remove {cost} of the finding {finding.slug}"


def _exceeds(trials: Trials, scenario: Scenario, cost: str) -> bool:
    """Whether the cost is larger than its bound; the summary of the run then says that, in place of the bound."""
    try:
        COSTS[cost](trials, scenario)
    except Disagreement:
        judged.restart()
        judged.current.note(scenario, "the cost of a known finding is still there")
        return True
    return False
