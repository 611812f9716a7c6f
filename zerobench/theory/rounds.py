"""What the reference engine gathers at stage 3, by playing its protocol through on paper, all ranks in step.

Nothing is computed and nothing is sent: ranks are generators that announce, for each round, the units they want whole,
and are told the units that all of them want. The rules are those of the engine's pages and docstrings: a unit is
gathered when it is touched and not whole; a touch first reshards units that are neither in use nor still to be used,
while more than ``max_live`` elements are whole; the next units in the order of the pass before are announced with it:
two, as many more as ``prefetch_bucket`` elements allow, and none if that is 0; a rank that has completed another batch
of units' gradients says so in a round of its own, batches being as many neighbours as train no more elements together
than a reduction's bucket takes, and 2**21; the last round finds every rank at its end.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import lru_cache

from torch import nn

from zerobench.scenario import Odd, Scenario
from zerobench.theory.layout import Unit, together, units
from zerobench.theory.touches import Event, events
from zerobench.workload.data import leaf

#: A rank's message in a round (positions of the units it wants; whether it is at its end), and the answer.
_Rounds = Generator[tuple[frozenset[int], bool], tuple[frozenset[int], bool], None]


@dataclass(frozen=True)
class MicroStep:
    """One micro-step of all ranks."""

    rounds: tuple[tuple[Unit, ...], ...]  # gathered in each round
    peaks: tuple[int, ...]  # by rank: the most elements of sharded units that were whole at once


@lru_cache(maxsize=4)  # asked for by every rank, and for each of the first three steps
def play(scenario: Scenario, model: nn.Module, steps: int) -> list[list[MicroStep]]:
    """The micro-steps of the first ``steps`` steps of training, none of which is skipped."""
    cut = units(scenario, model)
    ranks = [_Rank(scenario, cut) for _ in range(scenario.world)]
    played = []
    for step in range(steps):
        leaves = [[a * scenario.world + r for r in range(scenario.world)] for a in range(scenario.accumulation)]
        played.append([_micro_step(ranks, [_events(scenario, model, step, i) for i in each]) for each in leaves])
        for rank in ranks:
            rank.whole.clear()  # the step made their values old
    return played


def _events(scenario: Scenario, model: nn.Module, step: int, index: int) -> list[Event]:
    routed = isinstance(scenario.model, Odd) and scenario.model.routed
    return events(scenario, model, route=routed and leaf(scenario, step, index)["route"])


def _micro_step(ranks: list[_Rank], happening: list[list[Event]]) -> MicroStep:
    """Let all ranks announce, tell all of them all announcements, until all return, which they do together."""
    passes = [rank.micro_step(each) for rank, each in zip(ranks, happening, strict=True)]
    rounds = []
    said = [next(each) for each in passes]
    while said:
        wanted = frozenset[int]().union(*(wants for wants, _ in said))
        over = all(at_end for _, at_end in said)
        rounds.append(tuple(ranks[0].sharded[i] for i in sorted(wanted)))
        said = [answer for each in passes if (answer := _tell(each, wanted, over)) is not None]
    return MicroStep(tuple(rounds), tuple(rank.peak for rank in ranks))


def _tell(each: _Rounds, wanted: frozenset[int], over: bool) -> tuple[frozenset[int], bool] | None:
    """The rank's next message; None if it has returned."""
    try:
        return each.send((wanted, over))
    except StopIteration:
        return None


class _Rank:
    """One rank's view; units are positions among the sharded ones."""

    def __init__(self, scenario: Scenario, cut: list[Unit]) -> None:
        self.scenario = scenario
        self.sharded = [unit for unit in cut if not unit.persistent]
        self.home = {name: i for i, unit in enumerate(self.sharded) for name in unit.members}
        trainable = [unit for unit in reversed(cut) if unit.trainable]
        self.reduced = sorted(trainable, key=lambda unit: unit.persistent)
        self.batches = self._batches()
        self.whole: set[int] = set()
        self.order: list[int] = []  # of the touches of the micro-step before
        self.offers = False  # gradients are reduced during backward

    def _batches(self) -> list[list[Unit]]:
        """Units that are reduced together, in the order of reduction."""
        batches: list[list[Unit]] = []
        for unit in self.reduced:
            if batches and sum(each.elements for each in [*batches[-1], unit]) <= together(self.scenario):
                batches[-1].append(unit)
            else:
                batches.append([unit])
        return batches

    def micro_step(self, happening: list[Event]) -> _Rounds:
        """Everything that one micro-step announces."""
        self.peak = self._elements()
        self.touched: list[int] = []
        self.cursor = 0
        self.recent: frozenset[int] = frozenset()
        self.kept: set[int] = set()
        self.coming: set[int] = set()  # gathered and not touched since
        self.announced: frozenset[int] | None = None
        self.incomplete = [{name for unit in batch for name in unit.members} for batch in self.batches]
        for event in happening:
            here = {self.home[name] for name in event.names if name in self.home}
            if event.kind == "turn":
                self.kept.clear()
            elif event.kind == "complete":
                yield from self._complete(event.names)
            elif not self.kept.issuperset(here):
                self.kept.update(here if event.kind == "keep" else ())
                yield from self._touch(sorted(here))
        yield from self._end()

    def _complete(self, names: tuple[str, ...]) -> _Rounds:
        """Gradients are there; a round of its own if they complete the next batch in the order of reduction."""
        for members in self.incomplete:
            members.difference_update(names)
        if not self.incomplete or self.incomplete[0]:
            return
        while self.incomplete and not self.incomplete[0]:
            self.incomplete.pop(0)
        if self.offers and not any(self._lacks(i) for i in self.order[self.cursor :]):  # a touch to come would tell
            yield from self._settle()
            self.announced = frozenset()

    def _lacks(self, i: int) -> bool:
        return i not in self.whole and self.sharded[i].padded > 0

    def _touch(self, here: list[int]) -> _Rounds:
        if self.recent.issuperset(here):
            return
        self.recent = frozenset(here)
        self._follow(here)
        self._give_back()
        yield from self._settle()
        missing = [i for i in here if self._lacks(i)]
        ahead = self._ahead()
        if missing or ahead:
            self.announced = frozenset([*missing, *ahead])
        if missing:
            yield from self._settle()
        self.coming.difference_update(here)

    def _follow(self, here: list[int]) -> None:
        for i in here:
            self.touched.append(i)
            if i in self.order[self.cursor :]:
                self.cursor = self.order.index(i, self.cursor) + 1

    def _ahead(self) -> list[int]:
        room, ahead = self.scenario.prefetch_bucket, []
        for position, i in enumerate(self.order[self.cursor :] if room else ()):
            room -= self.sharded[i].padded
            if room < 0 and position >= 2:
                break
            if self._lacks(i):
                ahead.append(i)
        return ahead

    def _give_back(self) -> None:
        for i in sorted(self.whole - self.recent - self.kept - self.coming):
            if self._elements() <= self.scenario.max_live:
                return
            self.whole.remove(i)

    def _elements(self) -> int:
        return sum(self.sharded[i].padded for i in self.whole)

    def _settle(self) -> _Rounds:
        """Hear the agreement on the round announced, if there is one, and gather its units."""
        if self.announced is not None:
            wanted, _ = yield self.announced, False
            self._gather(wanted)
            self.announced = None

    def _gather(self, wanted: frozenset[int]) -> None:
        self.coming |= wanted
        self.whole |= wanted
        self.peak = max(self.peak, self._elements())

    def _end(self) -> _Rounds:
        yield from self._settle()
        over = False
        while not over:
            wanted, over = yield frozenset(), True
            self._gather(wanted)
        self.order, self.recent = self.touched, frozenset()
        self.coming.clear()
        # Not before an order of touches is known, and not if reentrant recomputation runs a backward within another.
        self.offers = self.scenario.overlap and self.scenario.model.recompute != "reentrant"
        self._give_back()
