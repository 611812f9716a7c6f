"""Cases: what the gate looks at in results: exact numbers, numbers that have a bound, and digests. Never a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerobench.bench.rounds import COMPUTE_ONLY
from zerobench.digests import CASE_VERSION
from zerobench.errors import UsageError
from zerobench.results.comparison import State, Values, machine, metrics, state
from zerobench.scenario import Optimizer, Scenario
from zerobench.workload import models

Json = dict[str, Any]

BUDGET = "budget used"
WORKING = "memory: working"
TOTAL = "traffic: total calls"
_STATES = ("memory: parameters", "memory: gradients", "memory: optimizer")
_PEAK = "memory: peak"
#: Of CUDA's caching allocator, which rounds by its own rules and keeps what it once had.
_NOT_GATED = ("memory: reserved", "memory: pinned", _PEAK, BUDGET)
_PLATFORM = ("torch", "cpu_capability", "cpu", "threads", "gpu")


@dataclass(frozen=True)
class Case:
    """A subject in a Scenario and its numbers, each by rank; in a baseline ``bounded`` holds the bounds."""

    subject: str
    scenario: Json
    state: State
    exact: Mapping[str, Values]  # bytes and calls
    bounded: Mapping[str, Values]  # bytes, or shares of an error budget
    digests: Mapping[str, str]
    reason: str = ""  # where the state is not right

    @classmethod
    def of(cls, row: Json) -> Case:
        """A row of results."""
        found, judgement = metrics(row), row["judgement"]
        reason = judgement["message"] if state(row) == "wrong" else row["reason"]
        return cls(
            row["subject"],
            row["scenario"],
            state(row),
            {name: values for name, values in found.items() if name not in _NOT_GATED} | _total(row),
            _bounded(found),
            _digests(row),
            reason,
        )

    @property
    def measured(self) -> bool:
        """Whether it has any number; a case that is unsupported, or of which only times were taken, has none."""
        return bool(self.exact or self.bounded or self.digests)

    @property
    def label(self) -> str:
        """For people; see :func:`label`."""
        return label(self.subject, self.scenario)


def label(subject: str, scenario: Json) -> str:
    """What sets cases apart, for people; the Scenario says all."""
    of = Scenario.from_json(json.dumps(scenario))
    model = models.name_of(of.model) or of.model.kind
    sizes = f"{subject} stage {of.stage}, {model}, {of.dtype}, N = {of.world}, A = {of.accumulation}"
    return ", ".join([sizes, *_settings(of)])


def _settings(of: Scenario) -> Iterator[str]:
    """What else a run can be asked for, where it was."""
    if of.optimizer_at != "none":
        yield f"optimizer on {of.optimizer_at}"
    if of.parameters_at != "none":
        yield f"parameters on {of.parameters_at}"
    if of.model.recompute != "none":
        yield f"recompute {of.model.recompute}"
    if of.clip:
        yield f"clip {of.clip:g}"
    if of.optimizer != Optimizer():
        yield of.optimizer.name


def _total(row: Json) -> dict[str, Values]:
    """Calls of all collectives: there wherever traffic was measured, even if no collective was called."""
    ledgers = row["traffic"] and row["traffic"]["measured"]
    return {TOTAL: tuple(sum(each["calls"] for each in ledger.values()) for ledger in ledgers)} if ledgers else {}


def _digests(row: Json) -> dict[str, str]:
    """The bits of what was trained, and of what each rank holds: who owns what."""
    trajectory = {"trajectory": row["digest"]} if row["digest"] else {}
    return trajectory | {f"held by rank {rank}": digest for rank, digest in enumerate(row.get("held") or [])}


def _bounded(found: Mapping[str, Values]) -> dict[str, Values]:
    """The share of the error budget, and the peak without the states, whose bytes are exact."""
    bounded = {BUDGET: found[BUDGET]} if BUDGET in found else {}
    if all(name in found for name in (_PEAK, *_STATES)):
        ranks = zip(found[_PEAK], *(found[name] for name in _STATES), strict=True)
        bounded[WORKING] = tuple((peak or 0) - sum(held or 0 for held in states) for peak, *states in ranks)
    return bounded


def cases(results: Iterable[Json]) -> dict[str, Case]:
    """All cases of several results by their names; compute-only is none, for nothing in it is gated.

    Raises:
        UsageError: results of another case version, or a case twice.
    """
    found: dict[str, Case] = {}
    for value in results:
        if value.get("case_version") != CASE_VERSION:
            given = value.get("case_version")
            raise UsageError(f"cannot gate results of case version {given}, only of {CASE_VERSION}: run them again")
        for row in value["rows"]:
            if row["subject"] != COMPUTE_ONLY:
                case = Case.of(row)
                if found.setdefault(row["case"], case) is not case:
                    raise UsageError(f"{case.label} is twice in the results: gate each measurement by itself")
    return found


def platform(results: Sequence[Json]) -> Json:
    """What must be equal for bits to be comparable: torch and all by which it chooses its matrix multiplication.

    Raises:
        UsageError: the results are of different platforms.
    """
    first, *others = (machine(value["environment"], _PLATFORM) for value in results)
    for other in others:
        for name in _PLATFORM:
            if other[name] != first[name]:
                given = f"{first[name]!r} and {other[name]!r}"
                raise UsageError(f"cannot gate results of different platforms: {name} is {given}; gate each by itself")
    return first
