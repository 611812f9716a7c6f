"""The errors a user meets, one class for each kind, each with its remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Protocol


class UsageError(Exception):
    """The request is invalid: the command line ends with this one line and exit code 2."""


class Finding(Protocol):
    """The place of a fault, as values: the message is for people, and it repeats the whole Scenario."""

    @property
    def part(self) -> str:
        """The part of a step or of a ledger, such as ``gradients``, ``norm`` or ``traffic``."""

    @property
    def name(self) -> str:
        """The name in that part: of a parameter, of a state, of a collective; empty if the part is one value."""

    @property
    def step(self) -> int | None:
        """The step, from 0; None if the fault is in no step."""

    @property
    def rank(self) -> int:
        """The rank with the fault."""


class Disagreement(AssertionError):
    """Two recordings, or a recording and a closed form, do not agree: the subject is wrong, and ``finding`` is the
    place."""

    def __init__(self, message: str, finding: Finding) -> None:
        super().__init__(message)
        self.finding = finding


class RankFailure(RuntimeError):
    """At least one rank died, raised or hung; the message holds the traceback of every rank."""


class Unmeasured(RuntimeError):
    """A run in its own process produced no results; the message holds its output. Exit code 2."""


def unknown(kind: str, given: str, known: Iterable[str]) -> UsageError:
    """The error for an unknown name: lists the given name, the known names and a likely correction if there is one."""
    names = sorted(known)
    close = difflib.get_close_matches(given, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return UsageError(f"unknown {kind} {given!r}{hint} (known: {', '.join(names)})")
