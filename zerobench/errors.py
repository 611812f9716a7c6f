"""The errors a user meets, one class for each kind, each carrying what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """What was asked for cannot be: the command line ends with this one line and exit code 2."""


class Disagreement(AssertionError):
    """Two recordings, or a recording and a closed form, do not agree: the subject is wrong."""


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
