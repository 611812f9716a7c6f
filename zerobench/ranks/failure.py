"""RankFault: the cause of a task's failure first, then the activity of every rank."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from zerobench.errors import RankFailure
from zerobench.verdict import Failure

#: The number of lines of a rank's output in a report: the last ones, which are nearest to the fault.
_LAST_LINES = 30


@dataclass(frozen=True)
class RankReport:
    """How one rank ended: ``kind`` is None if it returned; ``details`` are its traceback or stacks."""

    rank: int
    kind: Failure | None
    what: str  # continues "rank 1 ..."
    details: str = ""
    output: str = ""
    exception: str = ""  # the class name of its exception

    def section(self) -> str:
        """The section of the message on this rank and on all others that ended in the same way."""
        printed = self.output.splitlines()[-_LAST_LINES:]
        parts = [self.what, self.details.rstrip(), *(["printed:", *printed] if printed else [])]
        return "\n".join(part for part in parts if part)


@dataclass(frozen=True)
class RankPlace:
    """A rank that failed, as a place: ``part`` is how (``raised``), ``name`` the class of the exception."""

    part: str
    name: str
    rank: int
    step: int | None = None


class RankFault(RankFailure):
    """A task did not return on every rank: the message names the cause first and then holds every rank's report.

    ``kind``, ``rank`` and ``exception`` are the cause's. A death explains an exception on another rank (its connection
    broke), and either explains a rank that waits for ever, so the cause is the first report of the most severe kind.
    If ranks only waited, the smaller group hangs: the others all wait for it.
    """

    def __init__(self, reports: list[RankReport]) -> None:
        cause = next(each for kind in ("crashed", "raised", "timeout") for each in reports if each.kind == kind)
        reports = sorted(reports, key=lambda each: each.rank)
        alike: dict[str, list[int]] = {}
        for each in reports:
            alike.setdefault(each.section(), []).append(each.rank)
        blamed = [each.rank for each in reports if each.what == cause.what]
        if cause.kind == "timeout":
            sizes = sorted(len(ranks) for ranks in alike.values())
            if len(sizes) > 1 and sizes[0] < sizes[1]:
                blamed = min(alike.values(), key=len)
        headline = f"{_ranks(blamed)} {cause.what}"
        super().__init__("\n\n".join([headline, *(f"{_ranks(ranks)} {section}" for section, ranks in alike.items())]))
        self.kind: Failure = cause.kind or "raised"
        self.exception = cause.exception
        self.rank = blamed[0]
        self.reports = reports

    @property
    def place(self) -> RankPlace:
        """The rank at fault and how it failed."""
        return RankPlace(self.kind, self.exception, self.rank)

    def end_with(self, lines: str) -> None:
        """Put lines after the message, such as the command that runs the task again."""
        self.args = (f"{self}\n\n{lines}",)


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def how_it_died(exit_code: int | None) -> str:
    """An exit code as multiprocessing gives it, in words."""
    if exit_code is None:
        return "closed its pipe"
    if exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"exited with code {exit_code}"
