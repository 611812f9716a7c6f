"""LedgerDifference: a number of a rank's ledger that differs from its closed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from zerobench.recording import Traffic
from zerobench.scenario import Scenario

LedgerPart = Literal[
    "resident",  # bytes of a state on the device, between steps
    "host",  # bytes off the device, in host memory
    "files",  # bytes off the device, in files
    "moved",  # bytes that a step moves between device, host and files
    "traffic",  # calls and bytes of a collective in a step
    "wire",  # bytes on the network device in a step
    "undeclared",  # tensors that are alive and that no state declares
    "growth",  # bytes of all tensors that are alive
    "unreduced",  # bytes of gradients before their reduction
    "process",  # bytes in use that are no tensor
    "whole",  # parameters that are whole
    "within",  # bytes that are held only within a call
    "read",  # bytes that a call reads
    "kept",  # bytes that a call leaves until the next step or update is under way
    "left",  # all that is left of a closed engine
]


@dataclass(frozen=True)
class Entry:
    """One number of a ledger: ``name`` is a state, a collective or a way; ``what`` describes it for people."""

    part: LedgerPart
    what: str
    name: str = ""
    step: int | None = None


@dataclass(frozen=True)
class LedgerDifference:
    """One wrong number; ``str()`` is the message."""

    subject: str
    scenario: Scenario
    rank: int
    entry: Entry
    measured: object
    predicted: object
    formula: str

    @property
    def part(self) -> str:
        return self.entry.part

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def step(self) -> int | None:
        return self.entry.step

    def __str__(self) -> str:
        return (
            f"{self.subject}, rank {self.rank}: {self.entry.what}\n  got       {_shown(self.measured)}\n"
            f"  expected  {_shown(self.predicted)}\n  formula   {self.formula}"
        )


def _shown(value: object) -> object:
    if isinstance(value, Traffic):
        return f"{value.calls} calls, {value.sent} bytes sent, {value.received} received"
    return dict(value) if isinstance(value, Mapping) else value
