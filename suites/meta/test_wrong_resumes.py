"""The suite's power over resumes: it must fail on every engine that loses a state in a checkpoint."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from zerobench.ranks import Pool
from zerobench.suites.equivalence import test_resume, test_resume_elsewhere
from zerobench.suites.meta.demand import demand_caught
from zerobench.suites.meta.mutants.adjacent import ADJACENT
from zerobench.suites.meta.mutants.checkpoints import (
    RESUMING,
    ForgetsTheStepCounts,
    HalvesWhatThreeRanksSaved,
    LosesAllOptimizerStates,
    ShiftsAShardByItsPadding,
)
from zerobench.suites.meta.mutants.ddp_rules import OF_A_SCALER
from zerobench.suites.meta.mutants.deepspeed_layout import RIGHT, THROUGH_DEEPSPEED
from zerobench.suites.meta.mutants.elsewhere import (
    KeepsStepCountsElsewhere,
    KeepsTheSavedScale,
    RoundsAPartElsewhere,
    RoundsItsSavesElsewhere,
    TakesBuffersOfTheFirstElsewhere,
)
from zerobench.suites.meta.mutants.loads import (
    BEGUN_BY_OTHERS,
    OF_A_PART,
    OF_BLOCKS,
    OF_PROGRESS,
    OF_SETTINGS,
    ForgetsTheClientStateOnRankOne,
    KeepsTheLossScaleOfEveryLoad,
    LoadsMomentsOfEveryLoad,
)
from zerobench.suites.meta.mutants.offload import BETWEEN_PLACES
from zerobench.suites.meta.mutants.two_at_once import SAVED_AT_ONCE
from zerobench.suites.meta.mutants.unmet import OF_ANOTHER_STAGE, OF_MORE_RANKS
from zerobench.suites.meta.mutants.used_engines import (
    USED,
    KeepsBuffersInTraining,
    KeepsFirstMomentsInTraining,
    KeepsLaterStepCounts,
)
from zerobench.suites.meta.power.catching import again, default_examples, failure_of, first_failure
from zerobench.suites.support.trials import Trials

pytestmark = pytest.mark.rotating

_PARTS = [test_resume.test_load_of_a_part_equals_the_canonical_trainer]
_BLOCKS = [test_resume.test_resume_of_several_blocks]
_RESUMES = [
    test_resume.test_resume_equals_the_canonical_trainer,
    test_resume.test_resume_of_a_dynamic_loss_scale,
    test_resume.test_resume_of_step_counts,
]
_ELSEWHERE = [
    test_resume_elsewhere.test_each_step_follows_after_a_load,
    test_resume_elsewhere.test_two_leaves_keep_their_bits,
]
#: Of the wrong engines, those of other kinds of states.
_FEW = [ShiftsAShardByItsPadding, LosesAllOptimizerStates, ForgetsTheStepCounts]
#: Of the wrong engines in a load of a part, and in one into a used engine, those that an engine without a promise of
#: bits could be.
_FEW_LOADS = [
    *(LoadsMomentsOfEveryLoad, KeepsTheLossScaleOfEveryLoad, ForgetsTheClientStateOnRankOne),
    *(KeepsBuffersInTraining, KeepsFirstMomentsInTraining, KeepsLaterStepCounts),
]


def _name(of: Any) -> str:
    return str(of.__name__)


@pytest.mark.parametrize("mutant", [*RESUMING, *ADJACENT, *THROUGH_DEEPSPEED], ids=_name)
def test_wrong_resume_is_caught(pool: Pool, mutant: Any) -> None:
    """If an engine loses or changes a part of its state in a checkpoint, its own or one in DeepSpeed's layout, it fails
    after the resume."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, first_failure(trials, _RESUMES))


@pytest.mark.parametrize("mutant", OF_A_PART, ids=_name)
def test_wrong_load_of_a_part_is_caught(pool: Pool, mutant: Any) -> None:
    """So it does if it loads more or less than the client asked for."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, first_failure(trials, _PARTS))


@pytest.mark.parametrize("mutant", OF_PROGRESS, ids=_name)
def test_wrong_progress_is_caught(pool: Pool, mutant: Any) -> None:
    """So it does if it counts wrongly, or gives the client another state back."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, first_failure(trials, [*_RESUMES, *_PARTS]))


@pytest.mark.parametrize("mutant", OF_SETTINGS, ids=_name)
def test_a_load_of_settings_is_caught(pool: Pool, mutant: Any) -> None:
    """So it does if it takes settings of the engine that saved for those of the engine that loads."""
    trials = Trials.of(pool, mutant)
    test = test_resume_elsewhere.test_settings_are_those_of_the_engine_that_loads
    demand_caught(trials, mutant, first_failure(trials, [test]))


@pytest.mark.parametrize("mutant", [*USED, *SAVED_AT_ONCE], ids=_name)
def test_wrong_load_into_a_used_engine_is_caught(pool: Pool, mutant: Any) -> None:
    """So it does if it keeps a state that the load should replace."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, first_failure(trials, _RESUMES))


@pytest.mark.parametrize("mutant", OF_BLOCKS, ids=_name)
def test_wrong_block_is_caught(pool: Pool, mutant: Any) -> None:
    """So it does if it reads the wrong bytes of a parameter that has several blocks."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, first_failure(trials, _BLOCKS, patience=(2,)))


@pytest.mark.parametrize("mutant", [*BETWEEN_PLACES, *OF_ANOTHER_STAGE], ids=_name)
def test_wrong_load_at_another_place_is_caught(pool: Pool, mutant: Any) -> None:
    """So it does if it goes wrong where the states of one place, or of one stage, come to another."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, first_failure(trials, [test_resume.test_resume_elsewhere]))


@pytest.mark.parametrize("mutant", _FEW_LOADS, ids=_name)
def test_wrong_load_is_caught_without_bits(pool: Pool, mutant: Any) -> None:
    """So it does by the property that holds engines without a promise of bits."""
    trials = Trials.of(pool, mutant)
    stages = test_resume.test_each_step_follows_over_any_load.by_stage  # type: ignore[attr-defined]
    demand_caught(trials, mutant, first_failure(trials, stages))


@pytest.mark.parametrize("mutant", OF_A_SCALER, ids=_name)
def test_wrong_load_of_a_scaler_is_caught(pool: Pool, mutant: Any) -> None:
    """So it does, by as many draws as the default profile makes, if its loss scale goes on with other counts than the
    saved ones."""
    trials = Trials.of(pool, mutant)
    test = test_resume_elsewhere.test_a_dynamic_loss_scale_follows_after_a_load
    demand_caught(trials, mutant, first_failure(trials, [test], patience=[default_examples(test)]))


@pytest.mark.parametrize("mutant", _FEW, ids=_name)
@pytest.mark.parametrize("check", _ELSEWHERE, ids=_name)
def test_wrong_resume_elsewhere_is_caught(pool: Pool, mutant: Any, check: Any) -> None:
    """So it does if another number of ranks goes on, by both of the properties that hold engines without a promise."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, first_failure(trials, [check]))


@pytest.mark.parametrize("mutant", [*BEGUN_BY_OTHERS, *OF_MORE_RANKS], ids=_name)
def test_a_directory_that_other_ranks_began_is_caught(pool: Pool, mutant: Any) -> None:
    """So it does if it takes a part of what other ranks have left in the directory for its own."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, first_failure(trials, _ELSEWHERE))


@pytest.mark.parametrize("check", [test_resume.test_resume_at_another_world_size, *_ELSEWHERE[:1]], ids=_name)
def test_wrong_resume_from_three_ranks_is_caught(pool: Pool, check: Any) -> None:
    """So it does if it reads the state of three ranks wrongly, of which no other number is a multiple or a part."""
    trials = Trials.of(pool, HalvesWhatThreeRanksSaved)
    demand_caught(trials, HalvesWhatThreeRanksSaved, first_failure(trials, [check]))


@pytest.mark.parametrize(
    ("mutant", "check"),
    [
        (RoundsAPartElsewhere, test_resume.test_resume_at_another_world_size),
        (KeepsStepCountsElsewhere, test_resume_elsewhere.test_step_counts_follow_after_a_load),
        (RoundsItsSavesElsewhere, test_resume_elsewhere.test_each_step_follows_after_two_loads),
        (KeepsTheSavedScale, test_resume_elsewhere.test_each_step_follows_after_two_loads),
        (TakesBuffersOfTheFirstElsewhere, test_resume.test_buffers_at_another_world_size),
    ],
    ids=_name,
)
def test_wrong_load_of_what_others_saved_is_caught(pool: Pool, mutant: Any, check: Any) -> None:
    """So it does if such a load loses precision, step counts or the buffers of each rank."""
    trials = Trials.of(pool, mutant)
    demand_caught(trials, mutant, first_failure(trials, [check]))


@pytest.mark.parametrize("engine", RIGHT, ids=_name)
def test_right_resume_passes(pool: Pool, engine: Any) -> None:
    """An engine that resumes by way of DeepSpeed's layout is right."""
    trials = Trials.of(pool, engine)
    for each in _RESUMES:
        assert failure_of(partial(again(each, 10), trials)) is None
