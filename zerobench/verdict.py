"""Verdict: what became of a case, in the same words on ranks, in a run, in results, in reports and in the gate."""

from __future__ import annotations

from typing import Literal, get_args

#: How the ranks of a case failed.
Failure = Literal["raised", "crashed", "timeout"]
#: ``measured`` is a case that ran and that nobody judged.
Verdict = Literal["right", "wrong", "measured", "unsupported", "raised", "crashed", "timeout", "not measured"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

#: The case ran to its end: it has numbers.
RAN: frozenset[Verdict] = frozenset(("right", "wrong", "measured"))
#: The case ran, and nothing is known against it.
PASSED: frozenset[Verdict] = RAN - {"wrong"}
FAILING: frozenset[Verdict] = frozenset(("wrong", "raised", "crashed", "timeout"))
