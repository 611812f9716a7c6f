"""Trying a mutant: check after check on fresh ranks, until one fails."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from zerobench.errors import Disagreement
from zerobench.ranks import RankFault
from zerobench.suites.meta.automatic.checks import Check
from zerobench.suites.meta.automatic.enumeration import Mutation
from zerobench.suites.meta.automatic.mutated import MutatedPool
from zerobench.suites.support.trials import Trials

_HANGS = "rank timeout"
Status = Literal["killed", "survived", "not reached"]


@dataclass(frozen=True)
class Result:
    """A mutant's end. ``by`` is the property that failed, ``how`` its failure; both are empty if none failed."""

    id: str
    file: str
    line: int
    function: str
    operator: str
    before: str
    after: str
    source: str  # the digest of the function
    status: Status
    by: str = ""
    how: str = ""
    checks: int = 0
    scenarios: int = 0
    seconds: float = 0.0

    def plain(self) -> dict[str, Any]:
        """The fields as JSON takes them."""
        return asdict(self)


def try_out(mutation: Mutation, chosen: Sequence[Check]) -> Result:
    """Run the checks that reach the mutant, in their order; the first failure kills it."""
    started = time.monotonic()
    compile(mutation.source(), mutation.file, "exec", dont_inherit=True)  # an edit that is no Python kills nothing
    with MutatedPool(mutation, chosen[0].kernels if chosen else "native") as pool:
        trials = Trials(pool, "reference")
        ends = ((check.name, certain_failure(check, trials)) for check in chosen)
        number, (by, how) = next(((n, end) for n, end in enumerate(ends, 1) if end[1]), (len(chosen), ("", "")))
    status: Status = "killed" if how else "survived" if chosen else "not reached"
    return _result(mutation, status, by, how, number, trials.ran, round(time.monotonic() - started, 2))


def _result(mutation: Mutation, status: Status, *end: Any) -> Result:
    where = mutation.id, mutation.file, mutation.line, mutation.function, mutation.operator
    return Result(*where, mutation.before, mutation.after, mutation.scope, status, *end)


def certain_failure(check: Check, trials: Trials) -> str:
    """How a check fails; one that hangs must do so twice, because the machine may have been busy."""
    how = failure(check, trials)
    return failure(check, trials) if how == _HANGS else how


def failure(check: Check, trials: Trials) -> str:
    """How a check fails: the part of the recording that differs, or the end of the rank; empty if it passes."""
    try:
        check.applies(trials)
    except Disagreement as error:
        return f"differs: {error.finding.part}"
    except RankFault as error:
        return f"rank {error.kind}" + (f": {error.exception}" if error.exception else "")
    except Exception as error:  # noqa: BLE001 - a state that a judge cannot read is a failure like any other
        return f"error in the test: {type(error).__name__}"
    return ""
