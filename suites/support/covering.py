"""Covering: draws that meet every combination of a few discrete values, as a backend of Hypothesis.

Random draws repeat common combinations and leave out rare ones. Here a draw is a row of a covering array: each
discrete field takes the value that makes the most pairs of values which no row had before, and the most triples of the
fields in :data:`TRIPLES`. All other choices are uniform. Hypothesis records the choices, so that it replays and
shrinks a failure as usual; a field shrinks to its first value.

A row counts once its test has run to the end, so a discarded draw covers nothing. A value with which rows are often
discarded counts for less, because otherwise the same combinations would be tried again and again.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from math import prod
from typing import Any, ClassVar, Literal, TypeVar

from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, PrimitiveProvider

from zerobench.model_specs import Odd

T = TypeVar("T")

#: One of a row's combinations: names of fields and, for each, the position of its value.
Combination = tuple[tuple[str, int], ...]

#: The flags of an odd model.
PECULIAR = tuple(name for name, value in vars(Odd()).items() if value is False)
#: The fields of which every three values are to meet; the third may be a peculiarity.
TRIPLES = frozenset(["stage", "dtype", "world", "offload_optimizer", "offload_param", "accumulation"])

#: Of the name of a field that only tests of loads draw, for example the stages before and after.
OF_A_LOAD = "load "

#: Of a backend's name; the test's label follows.
PREFIX = "covering:"
#: Of all draws; ``pytest --seed`` sets it.
SEED = 0
#: Of all drawn Scenarios; ``pytest --device`` sets it.
DEVICE: Literal["cpu", "cuda"] = "cpu"

_FURTHEST = 2.0**64
#: The probability of the first value of a rare field if another one would cover as much.
_USUAL = 0.8
_WEIGHT = {2: 1, 3: 3}


class Covering(PrimitiveProvider):
    """Draws the rows of one test; a subclass for each test holds its seed."""

    lifetime = "test_function"
    seed: ClassVar[int] = 0
    label: ClassVar[str] = ""
    #: The field, and whether it is rare, whose position the next integer is; the row under way.
    asked: ClassVar[tuple[str, bool] | None] = None
    active: ClassVar[Covering | None] = None
    #: The combinations that have run, by test.
    covered: ClassVar[dict[str, set[Combination]]] = {}
    #: The values that each field can have, by test.
    fields: ClassVar[dict[str, dict[str, int]]] = {}

    def __init__(self, data: Any, /) -> None:
        super().__init__(data)
        self._random = random.Random(self.seed)  # noqa: S311 - draws of a test
        self._seen: set[Combination] = set()
        self._drawn: Counter[tuple[tuple[str, int], tuple[str, int]]] = Counter()
        self._begun: Counter[tuple[str, int]] = Counter()  # rows with a value, whether they ran or not
        self._row: dict[str, int] = {}
        self._fields: dict[str, int] = {}  # the values that each field can have, as far as rows have asked
        self._fixed: dict[str, int] = {}  # the values that every row of this test has
        self._target: dict[str, int] = {}
        self._known: dict[str, int] = {}
        self._open: list[Combination] = []  # that no row has tried to have

    @contextmanager
    def per_test_case_context_manager(self) -> Generator[None]:
        """A row begins."""
        self._target = self._missing()
        self._row, Covering.asked, Covering.active = {}, None, self
        yield

    def _missing(self) -> dict[str, int]:
        """A combination that no row has had, if there is one; each is tried once, because some cannot be."""
        if len(self._fields) != len(self._known):
            self._known, self._open = dict(self._fields), list(possible(self._fields))
            self._random.shuffle(self._open)
        while self._open:
            if (combination := self._open.pop()) not in self._seen and self._may_have(combination):
                return dict(combination)
        return {}

    def _may_have(self, combination: Combination) -> bool:
        return all(self._fixed.get(name, position) == position for name, position in combination)

    def fix(self, name: str, position: int, count: int) -> None:
        """Every row of this test has one of the field's values."""
        self._learn(name, count)
        self._row[name] = self._fixed[name] = position

    def _learn(self, name: str, count: int) -> None:
        """A row draws from this object's fields only: a second run of the test in one process draws the same rows."""
        self._fields[name] = count
        self.fields.setdefault(self.label, {})[name] = count

    def count(self) -> None:
        """The row has run: its combinations are not new any more."""
        new = set(_combinations(self._row))
        self._seen |= new
        main = [pair for pair in self._row.items() if pair[0] in TRIPLES]
        self._drawn.update((one, other) for one in self._row.items() for other in {one, *main})
        self.covered.setdefault(self.label, set()).update(new)

    def draw_integer(self, min_value: int | None = None, max_value: int | None = None, **_: Any) -> int:
        """The position of a field's value if one is asked for; any number otherwise."""
        if Covering.asked is not None and max_value is not None:
            (name, rare), Covering.asked = Covering.asked, None
            self._learn(name, max_value + 1)
            self._row[name] = found = self._best(name, max_value + 1, rare)
            self._begun[name, found] += 1
            return found
        low = -(2**63) if min_value is None else min_value
        return self._random.randint(low, low + 2**64 if max_value is None else max_value)

    def _best(self, name: str, count: int, rare: bool) -> int:
        """The position in the row's target. Otherwise the one whose combinations with the row so far are newest; of
        equals, the one that was drawn least."""
        if name in self._target and self._target[name] < count:
            return self._target[name]
        order = self._random.sample(range(count), count)
        if rare and self._random.random() < _USUAL:
            order.sort()
        elif not rare:
            order.sort(key=lambda position: self._usage(name, position))
        return max(order, key=lambda position: self._newness(name, position))

    def _usage(self, name: str, position: int) -> int:
        """The rows so far that had this value, and those that had it beside another main value of this row."""
        main = [pair for pair in self._row.items() if pair[0] in TRIPLES]
        return sum(self._drawn[(name, position), pair] for pair in [(name, position), *main])

    def _newness(self, name: str, position: int) -> float:
        """Of the new combinations, times the share of the rows with this value that ran; a triple counts for more,
        because fewer rows can have it."""
        value = name, position
        new = (each for each in _with(self._row, value) if each not in self._seen)
        return sum(_WEIGHT[len(each)] for each in new) * (self._drawn[value, value] + 1) / (self._begun[value] + 1)

    def draw_boolean(self, p: float = 0.5) -> bool:
        """Any."""
        return self._random.random() < p

    def draw_float(self, *, min_value: float = -_FURTHEST, max_value: float = _FURTHEST, **_: Any) -> float:
        """Any, evenly between the bounds."""
        return self._random.uniform(max(min_value, -_FURTHEST), min(max_value, _FURTHEST))

    def draw_string(self, intervals: Any, *, min_size: int = 0, max_size: int = 0, **_: Any) -> str:
        """Of the least size: no Scenario draws a text."""
        return "".join(chr(intervals[0]) for _ in range(min_size))

    def draw_bytes(self, min_size: int = 0, max_size: int = 0) -> bytes:
        """Of the least size: no Scenario draws bytes."""
        return self._random.randbytes(min_size)


def count_row() -> None:
    """Count the row that is drawn last as run."""
    if Covering.active is not None:
        Covering.active.count()


@cache
def among(name: str, *values: T, rare: bool = False) -> st.SearchStrategy[T]:
    """One of ``values``, which takes part in the covering under ``name``; the first is the simplest.

    If it is ``rare``, the first is also the usual value: all others occur as often as the covering needs them.
    """
    return _field(name, values, rare)


@st.composite
def _field(draw: st.DrawFn, name: str, values: tuple[T, ...], rare: bool) -> T:
    Covering.asked = (name, rare) if len(values) > 1 else None
    position = draw(_positions(len(values)))
    Covering.asked = None
    return values[position]


@st.composite
def fixed(draw: st.DrawFn, name: str, position: int, *values: T) -> T:
    """The same one of ``values`` in every row, which takes part in the covering under ``name``."""
    if Covering.active is not None:
        Covering.active.fix(name, position, len(values))
    return draw(st.just(values[position]))


@cache
def _positions(count: int) -> st.SearchStrategy[int]:
    return st.integers(0, count - 1)


def backend(label: str) -> str:
    """The name of the backend that draws for one test."""
    name = PREFIX + label
    AVAILABLE_PROVIDERS[name] = type(
        "Covering", (Covering,), {"seed": zlib.crc32(f"{label} {SEED}".encode()), "label": label}
    )
    return name


def _with(row: dict[str, int], new: tuple[str, int]) -> Iterator[Combination]:
    """The pairs and triples that a value makes with a row; by name, because two tests may draw in another order."""
    for pair in row.items():
        yield (pair, new) if pair < new else (new, pair)
    if new[0] in TRIPLES or new[0] in PECULIAR:
        main = [pair for pair in row.items() if pair[0] in TRIPLES]
        odd = [pair for pair in row.items() if pair[0] in PECULIAR and new[0] in TRIPLES]
        for one, other in (*itertools.combinations(main, 2), *itertools.product(main, odd)):
            yield tuple(sorted((one, other, new)))


def _combinations(row: dict[str, int]) -> Iterator[Combination]:
    before: dict[str, int] = {}
    for name, position in row.items():
        yield from _with(before, (name, position))
        before[name] = position


def possible(fields: dict[str, int]) -> Iterator[Combination]:
    """The pairs and triples of values that these fields can have."""
    for names in _to_combine(fields):
        yield from itertools.product(*([(name, position) for position in range(fields[name])] for name in names))


def _to_combine(fields: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """The pairs and triples of fields of which every combination of values is to run."""
    ordered = sorted(fields)
    yield from itertools.combinations(ordered, 2)
    for names in itertools.combinations([name for name in ordered if name in TRIPLES or name in PECULIAR], 3):
        if sum(name in TRIPLES for name in names) >= 2:
            yield names


def exported() -> dict[str, Any]:
    """The combinations that this process's tests have covered, for :func:`merge` in another process."""
    return {"fields": Covering.fields, "covered": [list(map(list, each)) for each in _all_covered()]}


def merge(exported: dict[str, Any]) -> None:
    """Add the combinations that another process has covered."""
    for label, fields in exported.get("fields", {}).items():
        Covering.fields.setdefault(label, {}).update(fields)
    Covering.covered.setdefault("", set()).update(
        tuple((name, position) for name, position in each) for each in exported.get("covered", [])
    )


def summary() -> str:
    """The share that the tests have covered together of the pairs and of the triples of values, of those fields that
    some test draws together; the pairs with a field of a load by themselves, because few tests draw them."""
    covered = Counter(_kind(tuple(name for name, _ in each)) for each in _all_covered())
    said = (
        f"{covered[kind]:,} of {total:,} {kind} ({covered[kind] / total:.1%})"
        for kind, total in sorted(_numbers_of_possible().items())
    )
    return f"draws with seed {SEED} met {', '.join(said)}; some cannot occur"


def _kind(names: tuple[str, ...]) -> str:
    if any(name.startswith(OF_A_LOAD) for name in names):
        return "pairs with a field of a load"
    return {2: "pairs of values", 3: "triples"}[len(names)]


def _all_covered() -> set[Combination]:
    return set().union(*Covering.covered.values())


def _numbers_of_possible() -> Counter[str]:
    """The number of possible pairs and triples of values, by kind; a field has the values of the test that draws the
    most."""
    counts: dict[str, int] = {}
    together: set[tuple[str, ...]] = set()
    for fields in Covering.fields.values():
        counts |= {name: max(count, counts.get(name, 0)) for name, count in fields.items()}
        together.update(_to_combine(fields))
    numbers: Counter[str] = Counter()
    for names in together:
        numbers[_kind(names)] += prod(counts[name] for name in names)
    return numbers
