"""A mutant's places are matched with the place of a failure, never with its message, which repeats the Scenario."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from zerobench.judge.command import ReplayCommand
from zerobench.judge.difference import Difference
from zerobench.judge.judgement import disagreement
from zerobench.judge.ledger import Entry, LedgerDifference, LedgerPart
from zerobench.judge.parts import ALL_PARTS
from zerobench.ranks import RankFault
from zerobench.ranks.failure import RankReport
from zerobench.scenario import LossScale, Scenario
from zerobench.suites.meta.mutants.accounting import HOARDERS, SPENDTHRIFTS, HoldsTheFirstGradients
from zerobench.suites.meta.mutants.edit import EDIT_MUTANTS
from zerobench.suites.meta.mutants.late import LATE_MUTANTS
from zerobench.suites.meta.mutants.offload import OFFLOAD_MUTANTS, CopiesTwice
from zerobench.suites.meta.mutants.order import HandsOutTheNextSubGroup
from zerobench.suites.meta.mutants.plain import MUTANTS
from zerobench.suites.meta.mutants.rules import RULE_MUTANTS
from zerobench.suites.meta.points import Points, matches, place_of
from zerobench.verdict import Failure

_ALL: list[Any] = [*MUTANTS, *OFFLOAD_MUTANTS, *LATE_MUTANTS, *RULE_MUTANTS, *EDIT_MUTANTS, *SPENDTHRIFTS, *HOARDERS]
_ALL += [HoldsTheFirstGradients, CopiesTwice, HandsOutTheNextSubGroup]

#: Its JSON has the names of most parts.
_WORDY = Scenario(
    dtype="fp16",
    offload_optimizer="cpu",
    loss_scale=LossScale(static=2.0),
    data_path="losses gradients norm skipped optimizer_state parameters model_parameters reads evaluation progress",
)
_NORM = Difference("reference", "canonical", _WORDY, rank=1, step=2, part="norm", name="", got="1.0", expected="2.0")


@pytest.mark.parametrize("part", [part for part in ALL_PARTS if part != "norm"])
def test_the_reproduce_line_is_not_matched(part: str) -> None:
    """A part that only the message's Scenario names does not match."""
    failure = disagreement(_NORM, ReplayCommand(_WORDY, "reference"))
    assert part in str(failure).splitlines()[-1]
    assert not Points(part).match(place_of(failure))
    assert Points("norm").match(place_of(failure))


def test_every_value_that_is_given_counts() -> None:
    """Name, step and rank narrow a place; one of several places is enough."""
    found = replace(_NORM, part="gradients", name="stem.weight")
    assert Points("norm", "gradients", name="stem.weight", step=2, rank=1).match(found)
    for other in (Points("gradients", name="weight"), Points("gradients", step=0), Points("gradients", rank=0)):
        assert not other.match(found)
        assert matches((other, Points("gradients")), found)


def test_a_ledger_and_a_rank_have_places() -> None:
    """Bytes match by the ledger and the name in it, a rank's failure by its kind and the exception."""
    entry = Entry("traffic", "gradients, or all_gather, in step 0", "recv", 0)
    found = LedgerDifference("reference", _WORDY, 1, entry, 3, 4, "parameters")
    assert Points("traffic", name="recv", step=0, rank=1).match(found)
    assert not Points("traffic", name="all_gather").match(found)
    fault = RankFault(
        [RankReport(0, None, "returned"), RankReport(1, "raised", "raised OSError: full", "", "", "OSError")]
    )
    assert Points("raised", name="OSError", rank=1).match(place_of(fault))
    assert not Points("raised", name="ValueError").match(place_of(fault))


@pytest.mark.parametrize("mutant", _ALL, ids=lambda mutant: mutant.__name__)
def test_every_part_is_known(mutant: Any) -> None:
    """A part that no failure has could never match."""
    known = {*ALL_PARTS, *get_args(LedgerPart), *get_args(Failure)}
    at = mutant.points_at if isinstance(mutant.points_at, tuple) else (mutant.points_at,)
    assert {part for each in at for part in each.parts} <= known
