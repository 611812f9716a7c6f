"""Accounts: the numbers of the ranks' ledgers beside their closed forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import nn

from zerobench.bench.ledger import COUNTED, STEPS, Census, Ledger, fill_ledger, most_gradients, take_census
from zerobench.judge.command import Account
from zerobench.judge.ledger import Entry, LedgerDifference, LedgerPart
from zerobench.meters import Stray
from zerobench.recording import Traffic
from zerobench.scenario import Scenario
from zerobench.subject import Theory
from zerobench.subjects import load
from zerobench.theory import memory
from zerobench.workload import models

T = TypeVar("T")

_OFF_DEVICE: tuple[LedgerPart, ...] = ("host", "files", "moved")
#: Of a model's blocks, those whose gradients may wait for their reduction.
_WAITING = 2


class UnknownForm(LookupError):
    """No closed form is known for a number of this subject."""


@dataclass(frozen=True)
class Books:
    """The accounts of one subject in one Scenario; each method compares the numbers of the ranks.

    Raises:
        UnknownForm: if the subject's theory has no form of a number.
    """

    subject: str
    scenario: Scenario

    @cached_property
    def model(self) -> nn.Module:
        """The model, for its shapes."""
        return models.build(self.scenario)

    @property
    def theory(self) -> Theory:
        """The subject's closed forms."""
        return self._known(load(self.subject).theory(), "any")

    def differences(self, account: Account, measured: Sequence[Any]) -> Iterator[LedgerDifference]:
        """The numbers that differ; ``measured`` has the result of the account's task in :data:`TASKS` on each rank."""
        for rank, here in enumerate(measured):
            yield from _CHECKS[account](self, rank, here)
        if account == "received":
            yield from self._received(measured)

    def _compare(
        self, rank: int, entry: Entry, got: object, expected: object, formula: str = ""
    ) -> Iterator[LedgerDifference]:
        if got != expected:
            formula = formula or self.theory.formulas.get(entry.part, {}).get(entry.name, f"that of {self.subject}")
            yield LedgerDifference(self.subject, self.scenario, rank, entry, got, expected, formula)

    def _known(self, form: T | None, part: str) -> T:
        if form is None:
            raise UnknownForm(f"no closed form of {self.subject} is known: {part}")
        return form

    def _states(self, rank: int, ledger: Ledger) -> Iterator[LedgerDifference]:
        for steps, got in ((0, ledger.before), (1, ledger.resident[0]), (STEPS, ledger.resident[-1])):
            expected = self._known(self.theory.memory(self.scenario, self.model, rank, steps), "resident")
            for state, size in expected.items():
                what, last = f"bytes of {state} resident after {steps} steps", steps - 1 if steps else None
                yield from self._compare(rank, Entry("resident", what, state, last), got[state], size)

    def _traffic(self, rank: int, ledger: Ledger) -> Iterator[LedgerDifference]:
        for step, got in enumerate(ledger.traffic):
            expected = self._known(self.theory.traffic(self.scenario, self.model, rank, step), "traffic")
            for collective in sorted({*got, *expected}):
                entry = Entry("traffic", f"{collective} in step {step}", collective, step)
                both = got.get(collective, Traffic()), expected.get(collective, Traffic())
                yield from self._compare(rank, entry, *both)

    def _received(self, ledgers: Sequence[Ledger]) -> Iterator[LedgerDifference]:
        """Over all ranks, as many bytes are received as are sent; a broadcast's source sends once, and a reduce's root
        receives once."""
        for step in range(len(ledgers[0].traffic)):
            total: dict[str, Traffic] = {}
            for ledger in ledgers:
                for collective, seen in ledger.traffic[step].items():
                    name = "send" if collective == "recv" else collective
                    total[name] = total.get(name, Traffic()) + seen
            for name, seen in total.items():
                others = self.scenario.world - 1
                sent, got = seen.sent * (others if name == "broadcast" else 1), seen.received
                got *= others if name == "reduce" else 1
                entry = Entry("traffic", f"bytes received by {name} in step {step}, of all ranks", name, step)
                yield from self._compare(0, entry, got, sent, "bytes sent by all ranks")

    def _offload(self, rank: int, ledger: Ledger) -> Iterator[LedgerDifference]:
        for step, got in enumerate(ledger.offload):
            expected = self._known(self.theory.offload(self.scenario, self.model, rank, step), "moved")
            for part in _OFF_DEVICE:
                sizes, form = getattr(got, part), getattr(expected, part)
                for name in sorted({*sizes, *form}):
                    entry = Entry(part, f"{part}, {name}, bytes in step {step}", name, step)
                    yield from self._compare(rank, entry, sizes.get(name, 0), form.get(name, 0))

    def _peaks(self, rank: int, ledger: Ledger) -> Iterator[LedgerDifference]:
        for step, peak in enumerate(ledger.parameter_peaks):
            expected = self._known(self.theory.parameter_peak(self.scenario, self.model, rank, step), "whole")
            entry = Entry("whole", f"bytes of parameters whole at once in step {step}", step=step)
            yield from self._compare(rank, entry, peak, expected, "zerobench.theory.rounds")

    def _hidden(self, rank: int, census: Census) -> Iterator[LedgerDifference]:
        """No tensor is undeclared except the reference engine's fold order of the norm, an int64 for each chunk."""
        chunks = memory.chunk_order(self.scenario, self.model)
        allowed = [Stray((chunks,), torch.int64, 8 * chunks)]
        entry = Entry("undeclared", "tensors alive that no state declares")
        yield from self._compare(rank, entry, census.strays, allowed, "the order of the chunks, and nothing else")

    def _growth(self, rank: int, census: Census) -> Iterator[LedgerDifference]:
        early, late = COUNTED
        entry = Entry("growth", f"bytes of all tensors alive after {late} steps")
        yield from self._compare(rank, entry, census.live[late], census.live[early], f"as after {early} steps")

    def _unreduced(self, rank: int, most: list[int]) -> Iterator[LedgerDifference]:
        """The gradients of two blocks wait at most, if the model has blocks of one size."""
        whole, layers = sum(p.nbytes for p in self.model.parameters()), getattr(self.scenario.model, "layers", _WAITING)
        for step, alive in enumerate(most):
            entry = Entry("unreduced", f"{alive} bytes of gradients alive at once in step {step}", "gradients", step)
            formula = f"<= {whole} * {_WAITING} / {layers}, of all gradients"
            yield from self._compare(rank, entry, alive * layers <= whole * _WAITING, True, formula)

    def _nothing(self, rank: int, ledger: Ledger) -> Iterator[LedgerDifference]:
        return iter(())


_CHECKS: Mapping[Account, Callable[[Books, int, Any], Iterator[LedgerDifference]]] = {
    "states": Books._states,
    "traffic": Books._traffic,
    "received": Books._nothing,  # the ranks are summed
    "offload": Books._offload,
    "peaks": Books._peaks,
    "hidden": Books._hidden,
    "growth": Books._growth,
    "unreduced": Books._unreduced,
}

#: The task that measures an account, and its arguments after the subject and the Scenario.
TASKS: Mapping[Account, tuple[Callable[..., Any], tuple[Account, ...]]] = {
    "states": (fill_ledger, ("states",)),
    "traffic": (fill_ledger, ("traffic",)),
    "received": (fill_ledger, ("traffic",)),
    "offload": (fill_ledger, ("offload",)),
    "peaks": (fill_ledger, ("peaks",)),
    "hidden": (take_census, ()),
    "growth": (take_census, ()),
    "unreduced": (most_gradients, ()),
}
