"""Verdict: the outcome of a case, in the same words on ranks, in a run, in results, in reports and in the gate."""

from __future__ import annotations

from typing import Literal

#: How the ranks of a case failed.
Failure = Literal["raised", "crashed", "timeout"]
#: ``measured`` is a case that ran and was not judged.
Verdict = Literal["right", "wrong", "measured", "unsupported", "raised", "crashed", "timeout", "not measured"]

#: The case ran to its end: it has numbers.
RAN: frozenset[Verdict] = frozenset(("right", "wrong", "measured"))
#: The case ran without a known fault.
PASSED: frozenset[Verdict] = RAN - {"wrong"}
FAILING: frozenset[Verdict] = frozenset(("wrong", "raised", "crashed", "timeout"))
