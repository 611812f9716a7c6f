"""The errors a user meets, one class for each kind, each carrying what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Protocol


class UsageError(Exception):
    """What was asked for cannot be: the command line ends with this one line and exit code 2."""


class Finding(Protocol):
    """The place of something wrong, as values: a message is for people, and it repeats the whole Scenario."""

    @property
    def part(self) -> str:
        """The part of a step or of a ledger, such as ``gradients``, ``norm`` or ``traffic``."""

    @property
    def name(self) -> str:
        """The name in that part: of a parameter, of a state, of a collective; empty if the part is one value."""

    @property
    def step(self) -> int | None:
        """The step, from 0; None if it is in no step."""

    @property
    def rank(self) -> int:
        """The rank that was seen to be wrong."""


class Disagreement(AssertionError):
    """Two recordings, or a recording and a closed form, do not agree: the subject is wrong, and ``finding`` says in
    which place."""

    def __init__(self, message: str, finding: Finding) -> None:
        super().__init__(message)
        self.finding = finding


class RankFailure(RuntimeError):
    """At least one rank died, raised or hung; the message holds the traceback of every rank."""


class Unmeasured(RuntimeError):
    """A run in a process of its own came to no results; the message holds what it said. Exit code 2."""


def unknown(kind: str, given: str, known: Iterable[str]) -> UsageError:
    """The error for a name nobody knows: says what was given, what is known, and what was likely meant."""
    names = sorted(known)
    close = difflib.get_close_matches(given, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return UsageError(f"unknown {kind} {given!r}{hint} (known: {', '.join(names)})")
