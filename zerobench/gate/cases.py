"""The gated numbers of a case: exact ones, bounded ones, and digests. Never a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zerobench.errors import UsageError
from zerobench.results import Json
from zerobench.results.comparison import Values, metrics, platform_of, reason_of
from zerobench.results.identity import CASE_VERSION, COMPUTE_ONLY
from zerobench.scenario import Optimizer, Scenario
from zerobench.verdict import Verdict
from zerobench.workload.sizes import name_of

BUDGET = "budget used"
WORKING = "memory: working"
TOTAL = "traffic: total calls"
_STATES = ("memory: parameters", "memory: gradients", "memory: optimizer")
_PEAK = "memory: peak"
#: Of CUDA's caching allocator, which rounds by its own rules and keeps freed memory.
_NOT_GATED = ("memory: reserved", "memory: pinned", _PEAK, BUDGET)
_PLATFORM = ("torch", "cpu_capability", "cpu", "threads", "gpu")


@dataclass(frozen=True)
class GatedCase:
    """A case and its numbers, each by rank; in a baseline ``bounded`` holds the bounds."""

    subject: str
    scenario: Json
    verdict: Verdict
    exact: Mapping[str, Values]  # bytes and calls
    bounded: Mapping[str, Values]  # bytes, or shares of an error budget
    digests: Mapping[str, str]
    exact_data: bool = False  # no sum was rounded: the digests are the same on every machine
    reason: str = ""  # if it did not pass

    @classmethod
    def of(cls, case: Json) -> GatedCase:
        """A case of results."""
        found = metrics(case)
        return cls(
            case["subject"],
            case["scenario"],
            case["verdict"],
            {name: values for name, values in found.items() if name not in _NOT_GATED} | _total(case),
            _bounded(found),
            _digests(case),
            bool((case["judgement"] or {}).get("exact")),
            reason_of(case),
        )

    @property
    def measured(self) -> bool:
        """Whether it has any number; it has none if it is unsupported or if only its times were measured."""
        return bool(self.exact or self.bounded or self.digests)

    @property
    def label(self) -> str:
        """For people; see :func:`label`."""
        return label(self.subject, self.scenario)


def label(subject: str, scenario: Json) -> str:
    """The settings that distinguish cases, for people; the Scenario has them all."""
    of = Scenario.from_json(json.dumps(scenario))
    model = name_of(of.model) or of.model.kind
    sizes = f"{subject} stage {of.stage}, {model}, {of.dtype}, N = {of.world}, A = {of.accumulation}"
    return ", ".join([sizes, *_settings(of)])


def _settings(of: Scenario) -> Iterator[str]:
    """The other settings of a run, if they were requested."""
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


def _total(case: Json) -> dict[str, Values]:
    """Calls of all collectives: present if traffic was measured, even if no collective was called."""
    ledgers = case["traffic"] and case["traffic"]["measured"]
    return {TOTAL: tuple(sum(each["calls"] for each in ledger.values()) for ledger in ledgers)} if ledgers else {}


def _digests(case: Json) -> dict[str, str]:
    """The bits of the trajectory, and of the states that each rank holds, hence of the ownership."""
    trajectory = {"trajectory": case["digest"]} if case["digest"] else {}
    return trajectory | {f"held by rank {rank}": digest for rank, digest in enumerate(case["held"] or [])}


def _bounded(found: Mapping[str, Values]) -> dict[str, Values]:
    """The share of the error budget, and the peak without the states: the states' bytes are exact. A peak that is less
    than the states, which it includes, is not measured."""
    bounded = {BUDGET: found[BUDGET]} if BUDGET in found else {}
    if all(name in found for name in (_PEAK, *_STATES)):
        ranks = zip(found[_PEAK], *(found[name] for name in _STATES), strict=True)
        working = tuple((peak or 0) - sum(held or 0 for held in states) for peak, *states in ranks)
        if min(working) >= 0:
            bounded[WORKING] = working
    return bounded


def gated_cases(results: Iterable[Json]) -> dict[str, GatedCase]:
    """All cases of several results by id, without compute-only, which has no gated number.

    Raises:
        UsageError: if results have another case version, or if a case occurs twice.
    """
    found: dict[str, GatedCase] = {}
    for value in results:
        if value.get("case_version") != CASE_VERSION:
            given = value.get("case_version")
            raise UsageError(f"cannot gate results of case version {given}, only of {CASE_VERSION}: run them again")
        for each in value["cases"]:
            if each["subject"] != COMPUTE_ONLY:
                case = GatedCase.of(each)
                if found.setdefault(each["id"], case) is not case:
                    raise UsageError(f"{case.label} is twice in the results: gate each measurement by itself")
    return found


def common_platform(results: Sequence[Json]) -> Json:
    """The platform, a condition of equal bits: torch and all that determines its choice of matrix multiplication.

    Raises:
        UsageError: if the results are of different platforms.
    """
    first, *others = (platform_of(value["environment"], _PLATFORM) for value in results)
    for other in others:
        for name in _PLATFORM:
            if other[name] != first[name]:
                given = f"{first[name]!r} and {other[name]!r}"
                raise UsageError(f"cannot gate results of different platforms: {name} is {given}; gate each by itself")
    return first
