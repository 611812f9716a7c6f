"""Comparison: the differences between two results, as ``zerobench compare`` reports them and the gate judges them.

Bytes and calls are exact: any difference is a change. Peaks and shares of an error budget are bounded: their changes
are reported, and can be judged only if the bound is known. Times are ratios and have no verdict: two files were not
measured in alternation, so their ratio includes changes of the machine's speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from zerobench.errors import UsageError
from zerobench.results import Json
from zerobench.results.identity import COMPUTE_ONLY
from zerobench.verdict import FAILING, PASSED, RAN, Verdict

#: One value for each rank; an error budget has one for all ranks. None is not measured.
Values = tuple[float | None, ...]

#: If these are the same, so are the bits of a trajectory.
_PLATFORM = ("torch", "platform", "cpu", "cpu_capability", "gpu")
_BOUNDED = frozenset({"memory: peak", "memory: reserved", "memory: pinned", "budget used"})


class Incomparable(UsageError):
    """The two results do not measure the same cases; the message names the difference."""


@dataclass(frozen=True)
class Transition:
    """The verdicts on a case in the base and in the head."""

    case: str
    base: Verdict
    head: Verdict
    reason: str  # the head's, or the base's if the head passed


def growth(base: Values, head: Values) -> list[float]:
    """The growth of each rank's value."""
    return [(after or 0) - (before or 0) for before, after in zip(base, head, strict=True)]


def furthest(grown: list[float]) -> int:
    """The rank with the largest growth or, if no value grew, the largest decrease."""
    return grown.index(max(grown)) if max(grown) > 0 else grown.index(min(grown))


@dataclass(frozen=True)
class Change:
    """A metric that differs; bytes, calls or a share of the error budget."""

    case: str
    metric: str
    kind: Literal["exact", "bounded"]
    base: Values
    head: Values

    @property
    def rank(self) -> int:
        """See :func:`furthest`."""
        return furthest(growth(self.base, self.head))

    @property
    def worse(self) -> bool:
        """Whether any rank's value grew: less is better for every metric."""
        return max(growth(self.base, self.head)) > 0


@dataclass(frozen=True)
class Timing:
    """Step times of a case in seconds, medians over rounds; ``low`` and ``high`` bound the ratio by the quartiles."""

    case: str
    base: float
    head: float
    ratio: float  # head to base
    low: float  # the head's lower quartile to the base's upper one
    high: float


@dataclass(frozen=True)
class Comparison:
    """The differences by case; cases are in the order of the base, new ones in that of the head."""

    compared: tuple[str, ...]  # measured in both
    newly_failing: tuple[Transition, ...]  # or no longer supported
    fixed: tuple[Transition, ...]  # or supported now
    still_failing: tuple[Transition, ...]
    new: tuple[str, ...]
    gone: tuple[str, ...]
    unmeasured: tuple[tuple[str, str], ...]  # (case, metric) that only the base has
    appeared: tuple[tuple[str, str], ...]  # (case, metric) that only the head has
    changes: tuple[Change, ...]
    moved: tuple[str, ...]  # on the same platform, other bits in a trajectory with promised bits
    timings: tuple[Timing, ...]

    @property
    def regressions(self) -> tuple[Change, ...]:
        """Exact metrics that grew on some rank."""
        return tuple(change for change in self.changes if change.kind == "exact" and change.worse)

    @property
    def exit_code(self) -> int:
        """0: good; 1: a regression; 2: nothing was measured, or less than in the base."""
        if self.newly_failing or self.regressions or self.moved:
            return 1
        return 2 if self.gone or self.unmeasured or not self._engines else 0

    @property
    def _engines(self) -> list[str]:
        """The compared cases without compute-only's, which no engine can make wrong."""
        return [name for name in self.compared if not name.startswith(COMPUTE_ONLY)]


def compare(base: Json, head: Json) -> Comparison:
    """Compare two results as ``zerobench/results/schema/results.json`` describes them.

    Raises:
        Incomparable: if schema, case version, settings, text or a case's Scenario differ, or if no case is in both.
    """
    for part in ("schema", "case_version"):
        _demand_same(part.replace("_", " "), base.get(part), head.get(part))
    for part in ("settings", "text"):
        _demand_same_items(part, base.get(part) or {}, head.get(part) or {})
    ours, theirs = _by_label(base), _by_label(head)
    common = [name for name in ours if name in theirs]
    if ours and theirs and not common:
        raise Incomparable(f"no case is in both: the base has {_few(ours)}, the head {_few(theirs)}")
    for name in common:
        _demand_same(f"the Scenario of {name}", ours[name]["scenario"], theirs[name]["scenario"])
    pairs = {name: (ours[name], theirs[name]) for name in common}
    ran = {name: pair for name, pair in pairs.items() if {pair[0]["verdict"], pair[1]["verdict"]} <= RAN}
    transitions = [_transition(name, *pair) for name, pair in pairs.items()]
    return Comparison(
        compared=tuple(ran),
        newly_failing=tuple(each for each in transitions if _broke(each)),
        fixed=tuple(each for each in transitions if each.head in PASSED and each.base in FAILING | {"unsupported"}),
        still_failing=tuple(each for each in transitions if each.base in FAILING and each.head in FAILING),
        new=tuple(name for name in theirs if name not in ours),
        gone=tuple(name for name in ours if name not in theirs or _lost(ours[name], theirs[name])),
        unmeasured=tuple(lost for name, pair in ran.items() for lost in _only_first(name, *pair)),
        appeared=tuple(new for name, (ours, theirs) in ran.items() for new in _only_first(name, theirs, ours)),
        changes=tuple(change for name, pair in ran.items() for change in _changes(name, *pair)),
        moved=tuple(name for name, pair in ran.items() if _same_platform(base, head) and _moved(*pair)),
        timings=tuple(timing for name, pair in ran.items() for timing in _timing(name, *pair)),
    )


def label_of(case: Json) -> str:
    """A case for people: subject, stage and id."""
    name = case["subject"] if case["stage"] is None else f"{case['subject']} stage {case['stage']}"
    return f"{name} ({case['id']})"


def reason_of(case: Json) -> str:
    """The reason if a case did not pass; otherwise the parts of it that were not measured."""
    reason: str = case["judgement"]["message"] if case["verdict"] == "wrong" else case["reason"]
    return reason


def metrics(case: Json) -> dict[str, Values]:
    """Every compared metric, by rank: bytes, calls, and the share of the error budget.

    If one side never called a collective, it has no metric for it; :func:`compare` takes it as zero. If only some ranks
    have a value, it is zero on the others.
    """
    found: dict[str, Values] = {}
    for part in ("memory", "offload"):
        ranks = (case.get(part) or {}).get("measured") or []
        for name in dict.fromkeys(name for rank in ranks for name in rank):
            found[f"{part}: {name}"] = tuple(rank.get(name) for rank in ranks)
    ledgers = (case["traffic"] or {}).get("measured") or []
    for collective in sorted({name for ledger in ledgers for name in ledger}):
        for number in ("calls", "sent", "received"):
            values = tuple(ledger.get(collective, {}).get(number, 0) for ledger in ledgers)
            found[f"traffic: {collective} {number}"] = values
    if case["judgement"] and case["judgement"]["budget_used"] is not None:
        found["budget used"] = (case["judgement"]["budget_used"],)
    known = {name: values for name, values in found.items() if any(value is not None for value in values)}
    return {name: tuple(0 if value is None else value for value in values) for name, values in known.items()}


def platform_of(environment: Json, names: Sequence[str]) -> Json:
    """An environment's values of these names; of GPUs only their identity: clocks and temperatures always differ."""
    gpu = environment.get("gpu")
    if isinstance(gpu, dict):
        environment = environment | {"gpu": {name: gpu.get(name) for name in ("names", "driver")}}
    return {name: environment.get(name) for name in names}


def _demand_same(what: str, base: Any, head: Any) -> None:
    if isinstance(base, dict) and isinstance(head, dict):
        for name in base.keys() | head.keys():
            _demand_same(f"{what}, {name},", base.get(name), head.get(name))
    elif base != head:
        raise Incomparable(
            f"{what} differs: {base!r} in the base, {head!r} in the head; run both with the same options"
        )


def _demand_same_items(what: str, base: Mapping[str, Any], head: Mapping[str, Any]) -> None:
    """Fields of both must be equal; one side may have more fields, and None means that its cases differ."""
    for name in base.keys() & head.keys():
        if base[name] is not None and head[name] is not None:
            _demand_same(f"{what}, {name},", base[name], head[name])


def _by_label(results: Json) -> dict[str, Json]:
    cases: dict[str, Json] = {}
    for case in results["cases"]:
        name = label_of(case)
        if name in cases and case["subject"] != COMPUTE_ONLY:
            raise Incomparable(f"{name} is twice in one file")
        cases.setdefault(name, case)
    return cases


def _few(cases: Mapping[str, Json]) -> str:
    names = list(cases)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _transition(name: str, base: Json, head: Json) -> Transition:
    said = base if head["verdict"] in PASSED else head
    return Transition(name, base["verdict"], head["verdict"], reason_of(said))


def _broke(each: Transition) -> bool:
    if each.base in FAILING:
        return False
    return each.head in FAILING or (each.base in PASSED and each.head == "unsupported")


def _lost(base: Json, head: Json) -> bool:
    return bool(base["verdict"] != head["verdict"] == "not measured")


def _only_first(name: str, case: Json, other: Json) -> Iterator[tuple[str, str]]:
    for bits in ("digest", "held"):
        if case.get(bits) and not other.get(bits):
            yield name, bits
    has = {_group(metric) for metric in metrics(other)}
    for group in dict.fromkeys(map(_group, metrics(case))):
        if group not in has:
            yield name, group


def _group(metric: str) -> str:
    """A ledger is measured as a whole: if a collective is not in it, it was not called."""
    return "traffic" if metric.startswith("traffic: ") else metric


def _changes(name: str, base: Json, head: Json) -> Iterator[Change]:
    """If the head lacks a metric, it may be unmeasured; if a measured ledger of the base lacks it, it was zero."""
    ours, theirs = metrics(base), metrics(head)
    for metric in dict.fromkeys([*ours, *theirs]):
        before = ours.get(metric) or _nothing(base, metric)
        after = theirs.get(metric) or (_nothing(head, metric) if _group(metric) == "traffic" else ())
        if before and after and before != after:
            yield Change(name, metric, "bounded" if metric in _BOUNDED else "exact", before, after)


def _nothing(case: Json, metric: str) -> Values:
    """Zero on every rank if the metric's ledger was measured; otherwise empty."""
    return (0,) * len((case.get(metric.partition(":")[0]) or {}).get("measured") or [])


def _same_platform(base: Json, head: Json) -> bool:
    return platform_of(base["environment"], _PLATFORM) == platform_of(head["environment"], _PLATFORM)


def _moved(base: Json, head: Json) -> bool:
    """Other bits, of the trajectory or of the states that a rank holds, hence of the owners."""
    pairs = [(base.get(name), head.get(name)) for name in ("digest", "held")]
    return any(before and after and before != after for before, after in pairs)


def _timing(name: str, base: Json, head: Json) -> Iterator[Timing]:
    if base["time"] and head["time"]:
        before, after = base["time"]["median"], head["time"]["median"]
        (before_low, before_high), (after_low, after_high) = base["time"]["quartiles"], head["time"]["quartiles"]
        if before and before_low:
            yield Timing(name, before, after, after / before, after_low / before_high, after_high / before_low)
