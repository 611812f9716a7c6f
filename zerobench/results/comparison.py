"""Compare: what differs between two results, as one pure function; ``zerobench compare`` and the gate build on it.

A case is a subject in a Scenario. Bytes and calls are exact: any difference is a change. Peaks and shares of an error
budget are bounded: their changes are told, and judged by who knows the bound. Times are ratios and judge nothing: two
files were not measured by turns, so that their ratio holds the machine's mood as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from zerobench.bench.rounds import COMPUTE_ONLY
from zerobench.errors import UsageError

Json = dict[str, Any]
#: What became of a case; only right and wrong ones were measured.
State = Literal["right", "wrong", "unsupported", "failed", "crashed", "timeout", "not measured"]
#: One value for each rank; of an error budget there is one for all ranks. None is not measured.
Values = tuple[float | None, ...]

FAILING = frozenset({"wrong", "failed", "crashed", "timeout"})
_MEASURED = frozenset({"right", "wrong"})
#: Where these are the same, so are the bits of a trajectory.
_PLATFORM = ("torch", "platform", "cpu", "cpu_capability", "gpu")
_BOUNDED = frozenset({"memory: peak", "memory: reserved", "memory: pinned", "budget used"})


class Incomparable(UsageError):
    """The two results do not measure the same; the message says what differs."""


@dataclass(frozen=True)
class Transition:
    """What a case was in the base and is in the head."""

    case: str
    base: State
    head: State
    reason: str  # the head's, or, where that is right, the base's


def growth(base: Values, head: Values) -> list[float]:
    """By how much each rank's value grew."""
    return [(after or 0) - (before or 0) for before, after in zip(base, head, strict=True)]


def furthest(grown: list[float]) -> int:
    """The rank whose value grew most, or shrank most where none grew."""
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
    """All that differs, case by case; cases are in the order of the base, new ones in that of the head."""

    compared: tuple[str, ...]  # measured in both
    newly_failing: tuple[Transition, ...]  # or no longer supported
    fixed: tuple[Transition, ...]  # or supported now
    still_failing: tuple[Transition, ...]
    new: tuple[str, ...]
    gone: tuple[str, ...]
    unmeasured: tuple[tuple[str, str], ...]  # (case, metric) that only the base has
    appeared: tuple[tuple[str, str], ...]  # (case, metric) that only the head has
    changes: tuple[Change, ...]
    moved: tuple[str, ...]  # on the same platform, other bits in a trajectory whose bits are promised
    timings: tuple[Timing, ...]

    @property
    def regressions(self) -> tuple[Change, ...]:
        """Exact metrics that grew on some rank."""
        return tuple(change for change in self.changes if change.kind == "exact" and change.worse)

    @property
    def exit_code(self) -> int:
        """0: good; 1: a regression; 2: nothing, or less than in the base, was measured."""
        if self.newly_failing or self.regressions or self.moved:
            return 1
        return 2 if self.gone or self.unmeasured or not self.compared else 0


def compare(base: Json, head: Json) -> Comparison:
    """Compare two results as ``zerobench/results/schema/results.json`` describes them.

    Raises:
        Incomparable: schema, case version, settings, text, or the Scenario of a case differ, or no case is in both.
    """
    for part in ("schema", "case_version"):
        _demand_same(part.replace("_", " "), base.get(part), head.get(part))
    for part in ("settings", "text"):
        _demand_same_items(part, base.get(part) or {}, head.get(part) or {})
    ours, theirs = _by_case(base), _by_case(head)
    common = [case for case in ours if case in theirs]
    if ours and theirs and not common:
        raise Incomparable(f"no case is in both: the base has {_few(ours)}, the head {_few(theirs)}")
    for case in common:
        _demand_same(f"the Scenario of {case}", ours[case]["scenario"], theirs[case]["scenario"])
    pairs = {case: (ours[case], theirs[case]) for case in common}
    ran = {case: pair for case, pair in pairs.items() if {state(pair[0]), state(pair[1])} <= _MEASURED}
    transitions = [_transition(case, *pair) for case, pair in pairs.items()]
    return Comparison(
        compared=tuple(ran),
        newly_failing=tuple(each for each in transitions if _broke(each)),
        fixed=tuple(each for each in transitions if each.head == "right" and each.base in FAILING | {"unsupported"}),
        still_failing=tuple(each for each in transitions if each.base in FAILING and each.head in FAILING),
        new=tuple(case for case in theirs if case not in ours),
        gone=tuple(case for case in ours if case not in theirs or _lost(ours[case], theirs[case])),
        unmeasured=tuple(lost for case, pair in ran.items() for lost in _only_first(case, *pair)),
        appeared=tuple(new for case, (ours, theirs) in ran.items() for new in _only_first(case, theirs, ours)),
        changes=tuple(change for case, pair in ran.items() for change in _changes(case, *pair)),
        moved=tuple(case for case, pair in ran.items() if _same_platform(base, head) and _moved(*pair)),
        timings=tuple(timing for case, pair in ran.items() for timing in _timing(case, *pair)),
    )


def case_of(row: Json) -> str:
    """The name of a row's case for people: subject, stage, and, where the file has one (schema 2), the id."""
    name = row["subject"] if row["stage"] is None else f"{row['subject']} stage {row['stage']}"
    return f"{name} ({row['case']})" if row.get("case") else str(name)


def state(row: Json) -> State:
    """What became of a row."""
    judgement = row["judgement"]
    if row["verdict"] == "ok":
        return "wrong" if judgement and not judgement["right"] else "right"
    verdict: State = row["verdict"]
    return verdict


def metrics(row: Json) -> dict[str, Values]:
    """Every metric that is compared, by rank; bytes, calls, and the share of the error budget.

    A collective that one side never called is no metric of it; :func:`compare` takes it as zero. A rank that has no
    value where others have one holds nothing of it.
    """
    found: dict[str, Values] = {}
    for part in ("memory", "offload"):
        ranks = (row.get(part) or {}).get("measured") or []
        for name in dict.fromkeys(name for rank in ranks for name in rank):
            found[f"{part}: {name}"] = tuple(rank.get(name) for rank in ranks)
    ledgers = (row["traffic"] or {}).get("measured") or []
    for collective in sorted({name for ledger in ledgers for name in ledger}):
        for number in ("calls", "sent", "received"):
            values = tuple(ledger.get(collective, {}).get(number, 0) for ledger in ledgers)
            found[f"traffic: {collective} {number}"] = values
    if row["judgement"] and row["judgement"]["budget_used"] is not None:
        found["budget used"] = (row["judgement"]["budget_used"],)
    known = {name: values for name, values in found.items() if any(value is not None for value in values)}
    return {name: tuple(0 if value is None else value for value in values) for name, values in known.items()}


def machine(environment: Json, names: Sequence[str]) -> Json:
    """What an environment says under these names; of GPUs, what they are: clocks and heat are never twice the same."""
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
    """What both say must be the same; one may say more, and None says that rows differ."""
    for name in base.keys() & head.keys():
        if base[name] is not None and head[name] is not None:
            _demand_same(f"{what}, {name},", base[name], head[name])


def _by_case(results: Json) -> dict[str, Json]:
    cases: dict[str, Json] = {}
    for row in results["rows"]:
        if case_of(row) in cases and row["subject"] != COMPUTE_ONLY:
            raise Incomparable(f"{case_of(row)} is twice in one file")
        cases.setdefault(case_of(row), row)
    return cases


def _few(cases: Mapping[str, Json]) -> str:
    names = list(cases)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _transition(case: str, base: Json, head: Json) -> Transition:
    said = base if state(head) == "right" else head
    reason = said["judgement"]["message"] if state(said) == "wrong" else said["reason"]
    return Transition(case, state(base), state(head), reason)


def _broke(each: Transition) -> bool:
    if each.base in FAILING:
        return False
    return each.head in FAILING or (each.base == "right" and each.head == "unsupported")


def _lost(base: Json, head: Json) -> bool:
    return state(base) != "not measured" and state(head) == "not measured"


def _only_first(case: str, row: Json, other: Json) -> Iterator[tuple[str, str]]:
    has = {_group(name) for name in metrics(other)}
    for group in dict.fromkeys(map(_group, metrics(row))):
        if group not in has:
            yield case, group


def _group(metric: str) -> str:
    """A ledger is measured as a whole: a collective that is not in it was not called."""
    return "traffic" if metric.startswith("traffic: ") else metric


def _changes(case: str, base: Json, head: Json) -> Iterator[Change]:
    """What the head lacks may not have been measured; what a ledger of the base lacks, there was none of."""
    ours, theirs = metrics(base), metrics(head)
    for name in dict.fromkeys([*ours, *theirs]):
        before = ours.get(name) or _nothing(base, name)
        after = theirs.get(name) or (_nothing(head, name) if _group(name) == "traffic" else ())
        if before and after and before != after:
            yield Change(case, name, "bounded" if name in _BOUNDED else "exact", before, after)


def _nothing(row: Json, metric: str) -> Values:
    """Zero on every rank, where the ledger that the metric is of was measured; else empty."""
    return (0,) * len((row.get(metric.partition(":")[0]) or {}).get("measured") or [])


def _same_platform(base: Json, head: Json) -> bool:
    return machine(base["environment"], _PLATFORM) == machine(head["environment"], _PLATFORM)


def _moved(base: Json, head: Json) -> bool:
    digests = base.get("digest"), head.get("digest")
    return None not in digests and digests[0] != digests[1]


def _timing(case: str, base: Json, head: Json) -> Iterator[Timing]:
    if base["time"] and head["time"]:
        before, after = base["time"]["median"], head["time"]["median"]
        (before_low, before_high), (after_low, after_high) = base["time"]["quartiles"], head["time"]["quartiles"]
        if before and before_low:
            yield Timing(case, before, after, after / before, after_low / before_high, after_high / before_low)
