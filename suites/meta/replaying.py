"""Replaying: the command that a failure prints, run in this process."""

from __future__ import annotations

import shlex

from zerobench.bench.replay import compare_again
from zerobench.cli import options
from zerobench.cli.replay_options import replay_command
from zerobench.errors import Disagreement, Finding
from zerobench.ranks import Pool, RankFault
from zerobench.ranks.failure import RankPlace
from zerobench.suites.meta.points import place_of

_REPRODUCE = "  reproduce zerobench "


def demand_reproduced(failure: Disagreement | RankFault, pool: Pool) -> None:
    """The printed command finds the same difference at the same place."""
    lines = [line for line in str(failure).splitlines() if line.startswith(_REPRODUCE)]
    assert len(lines) == 1, f"expected one command in: {failure}"
    expected, found = place_of(failure), _found(lines[0].removeprefix(_REPRODUCE), pool)
    assert found is not None, f"the command finds nothing: {failure}"
    assert _place(found) == _place(expected), f"the command finds another difference, {found}, than {failure}"


def _found(command: str, pool: Pool) -> Finding | None:
    """The place that the command finds."""
    given = replay_command(options.parser().parse_args(shlex.split(command)))
    try:
        return compare_again(given, pool).finding
    except RankFault as fault:
        return fault.place


def _place(found: Finding) -> tuple[object, ...]:
    """Without the rank that fails, because the first of several that fail ends the others."""
    return found.part, found.name, found.step, None if isinstance(found, RankPlace) else found.rank
