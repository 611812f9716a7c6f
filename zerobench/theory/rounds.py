"""The gathers of the reference engine at stage 3, from a simulation of its protocol with all ranks in lockstep.

Nothing is computed and nothing is sent: ranks are generators. In each round they announce the units that they want
whole, and receive the units that all of them want. The rules are those of the engine's pages and docstrings. A unit is
gathered if it is touched and not whole. If more than ``max_live`` elements are whole, a touch first reshards units that
are neither in use nor still to be used. The next units in the order of the previous pass are announced with it: two, as
many more as ``prefetch_bucket`` elements allow, and none if that is 0. If a rank has completed the gradients of another
batch of units, it announces that in a separate round; a batch is as many neighbours as together train at most a
reduction bucket's elements, and at most 2**21. In the last round every rank is at its end.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import lru_cache

from torch import nn

from zerobench.scenario import Scenario
from zerobench.theory.layout import Unit, together, units
from zerobench.theory.touches import Event, events
from zerobench.workload.data import takes_route

#: A rank's message in a round (positions of the units it wants; whether it is at its end), and the answer.
_Rounds = Generator[tuple[frozenset[int], bool], tuple[frozenset[int], bool], None]


@dataclass(frozen=True)
class MicroStep:
    """One micro-step of all ranks."""

    rounds: tuple[tuple[Unit, ...], ...]  # gathered in each round
    peaks: tuple[int, ...]  # by rank: the peak of whole elements of sharded units


@lru_cache(maxsize=4)  # requested by every rank, and for each of the first three steps
def play(scenario: Scenario, model: nn.Module, steps: int) -> list[list[MicroStep]]:
    """The micro-steps of the first ``steps`` steps of training, if none is skipped."""
    cut = units(scenario, model)
    ranks = [_Rank(scenario, cut) for _ in range(scenario.world)]
    played = []
    for step in range(steps):
        leaves = [[a * scenario.world + r for r in range(scenario.world)] for a in range(scenario.accumulation)]
        played.append([_micro_step(ranks, [_events(scenario, model, step, i) for i in each]) for each in leaves])
        for rank in ranks:
            rank.whole.clear()  # the step made their values old
    return played


def forward(scenario: Scenario, model: nn.Module, index: int) -> MicroStep:
    """Evaluation ``index`` of all ranks: a forward of the same batch on each. It follows the order of uses of the
    evaluation before it, not that of training."""
    whole_pass = events(scenario, model, route=True)
    happening = whole_pass[: whole_pass.index(Event("turn")) + 1]
    ranks = [_Rank(scenario, units(scenario, model)) for _ in range(scenario.world)]
    return [_micro_step(ranks, [happening] * scenario.world) for _ in range(index + 1)][-1]


def _events(scenario: Scenario, model: nn.Module, step: int, index: int) -> list[Event]:
    return events(scenario, model, takes_route(scenario, step, index))


def _micro_step(ranks: list[_Rank], happening: list[list[Event]]) -> MicroStep:
    """Let all ranks announce and send all announcements to all, until all return; they return together."""
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
        self.order: list[int] = []  # the touches of the previous micro-step
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
        """The announcements of one micro-step."""
        self.peak = self._elements()
        self.touched: list[int] = []
        self.cursor = 0
        self.recent: frozenset[int] = frozenset()
        self.kept: set[int] = set()  # to the end of the forward, or of the backward
        self.held: set[int] = set()  # to the end of a module's forward
        self.coming: set[int] = set()  # gathered and not touched since
        self.announced: frozenset[int] | None = None
        self.incomplete = [{name for unit in batch for name in unit.members} for batch in self.batches]
        for event in happening:
            here = {self.home[name] for name in event.names if name in self.home}
            if event.kind == "turn":
                self.kept.clear()
            elif event.kind == "return":
                self.held.clear()
            elif event.kind == "complete":
                yield from self._complete(event.names)
            elif event.kind in ("use", "enter", "saved"):
                self.held.update(here if event.kind == "enter" else ())
                yield from self._touch(sorted(here))
            elif not (self.kept | self.held).issuperset(here):
                # A module without a sharded unit of its own borrows for the forward, or the backward, around it.
                (self.held if event.kind == "borrow" and self.held else self.kept).update(here)
                yield from self._touch(sorted(here))
        yield from self._end()

    def _complete(self, names: tuple[str, ...]) -> _Rounds:
        """Gradients are complete; a separate round if they complete the next batch in the order of reduction."""
        for members in self.incomplete:
            members.difference_update(names)
        if not self.incomplete or self.incomplete[0]:
            return
        while self.incomplete and not self.incomplete[0]:
            self.incomplete.pop(0)
        if self.offers and not any(self._lacks(i) for i in self.order[self.cursor :]):  # else a later touch announces
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
        for i in sorted(self.whole - self.recent - self.kept - self.held - self.coming):
            if self._elements() <= self.scenario.max_live:
                return
            self.whole.remove(i)

    def _elements(self) -> int:
        return sum(self.sharded[i].padded for i in self.whole)

    def _settle(self) -> _Rounds:
        """Receive the agreement on the announced round, if there is one, and gather its units."""
        if self.announced is not None:
            wanted, _ = yield self.announced, False
            self._gather(wanted)
            self.announced = None

    def _gather(self, wanted: frozenset[int]) -> None:
        self.coming |= wanted
        self.whole |= wanted
        self.peak = max(self.peak, self._elements())

    def _end(self) -> _Rounds:
        self.kept.clear()
        yield from self._settle()
        over = False
        while not over:
            wanted, over = yield frozenset(), True
            self._gather(wanted)
        self.order, self.recent = self.touched, frozenset()
        self.coming.clear()
        # Only if an order of touches is known, and not if reentrant recomputation runs a backward within another.
        self.offers = self.scenario.overlap and self.scenario.model.recompute != "reentrant"
        self._give_back()
