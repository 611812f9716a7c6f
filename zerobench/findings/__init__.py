"""Known findings: defects of released engines, as data, each with a reproducer that needs no zerobench.

A property sets aside a Scenario that a known finding describes, so that its draws find unknown defects.
test_known_findings.py in suites/equivalence and suites/accounting still run each finding, which must still fail in the
stated way.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from packaging.specifiers import SpecifierSet

from zerobench.findings.facts import FACTS
from zerobench.scenario import Scenario

if TYPE_CHECKING:  # a table of results is merged without torch
    from zerobench.subject import Subject

Kind = Literal["wrong", "raised", "hung", "died"]


@dataclass(frozen=True)
class KnownFinding:
    """A defect of an engine.

    ``where`` describes the Scenarios that have it, as alternatives. Each has fields, dotted into the model or the
    optimizer, or facts (zerobench/findings/facts.py), and for each a list of its values, bounds (``least``, ``not``),
    or items of which it has one (``has``), each (``all``) or none (``lacks``). It is empty if no subject reaches the
    defect. A finding that a test can repeat has a ``scenario``. If a race decides how it ends, ``also`` has the other
    kinds.

    An engine that trains right may hold or send too much. Such a finding has ``costs``, the numbers of the accounting
    that are wrong, by their names in suites/accounting/costs.py; every other property goes on as if it were not there.
    """

    slug: str  # the folder of its reproducer in reports/findings
    distribution: str  # the package of the engine
    versions: str  # as pip writes them
    subjects: tuple[str, ...]
    kind: Kind
    explanation: str
    upstream: str
    where: Sequence[Mapping[str, Any]]
    scenario: Scenario | None
    also: tuple[Kind, ...] = ()
    costs: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        """Whether this version of the engine has it."""
        return bool(self.where) and is_within(self.distribution, self.versions)

    def describes(self, scenario: Scenario) -> bool:
        """Whether a Scenario has it."""
        return self.alternatives(scenario) > 0

    def alternatives(self, scenario: Scenario) -> int:
        """The number of its alternatives that describe a Scenario."""
        described = (
            all(_allows(each, _field(scenario, name)) for name, each in alternative.items())
            for alternative in self.where
        )
        return sum(described)


def known(subject: type[Subject]) -> Sequence[KnownFinding]:
    """Those of a subject, and of the subjects that it derives from, in the installed version."""
    return _known(subject, everything)


@functools.cache
def _known(subject: type[Subject], read: Callable[[], Sequence[KnownFinding]]) -> Sequence[KnownFinding]:
    names = {vars(each).get("name") for each in subject.__mro__}
    return [each for each in read() if names & set(each.subjects) and each.installed]


def matching(subject: type[Subject], scenario: Scenario, cost: str = "") -> KnownFinding | None:
    """The first known finding of a subject, in the installed version, that a Scenario has.

    One of costs counts only for a property that judges this ``cost``.
    """
    return next((each for each in _of_cost(subject, cost) if each.describes(scenario)), None)


def in_the_way(subject: type[Subject], scenario: Scenario, cost: str = "") -> int:
    """The number of alternatives, of all of these findings, that describe a Scenario."""
    return sum(each.alternatives(scenario) for each in _of_cost(subject, cost))


def _of_cost(subject: type[Subject], cost: str) -> Iterator[KnownFinding]:
    return (each for each in known(subject) if not each.costs or cost in each.costs)


@functools.cache
def is_within(distribution: str, versions: str) -> bool:
    """Whether a package is installed in a range of versions."""
    try:
        return SpecifierSet(versions, prereleases=True).contains(version(distribution))
    except PackageNotFoundError:
        return False


@functools.cache
def everything() -> Sequence[KnownFinding]:
    """All known findings, of all engines and versions."""
    raw = json.loads((files(__name__) / "known.json").read_text(encoding="utf-8"))
    return [_read(each) for each in raw]


def _read(raw: dict[str, Any]) -> KnownFinding:
    scenario = raw.pop("scenario")
    read = None if scenario is None else Scenario.from_json(json.dumps(scenario))
    tuples = {name: tuple(raw.get(name, ())) for name in ("subjects", "also", "costs")}
    return KnownFinding(**raw | tuples | {"scenario": read})


def _field(scenario: Scenario, name: str) -> Any:
    """A fact, or a field by its dotted name; None if the Scenario's model has no such field."""
    if name in FACTS:
        return FACTS[name](scenario)
    found: Any = scenario
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _allows(allowed: Any, value: Any) -> bool:
    value = list(value) if isinstance(value, tuple) else value  # as JSON has it
    if isinstance(allowed, list):
        return value in allowed
    if "has" in allowed and not set(allowed["has"]).intersection(value):
        return False
    if "all" in allowed and not set(allowed["all"]).issubset(value):
        return False
    if "lacks" in allowed and set(allowed["lacks"]).intersection(value):
        return False
    return value is not None and value >= allowed.get("least", value) and value not in allowed.get("not", [])
