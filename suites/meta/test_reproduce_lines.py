"""The last line of each kind of failure finds the same fault at the same place."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch.distributed as dist

from zerobench.errors import Disagreement, UsageError
from zerobench.judge.command import ReplayCommand, between
from zerobench.ranks import Pool, RankFault
from zerobench.scenario import Scenario
from zerobench.suites.equivalence import test_contract, test_every_step, test_peers, test_resume, test_steps
from zerobench.suites.meta.broken import RaisesWhenBuilt
from zerobench.suites.meta.mutants import checkpoints, plain, shared
from zerobench.suites.meta.power.catching import again, failure_of
from zerobench.suites.meta.replaying import demand_reproduced
from zerobench.suites.project.cli.broken import Dies
from zerobench.suites.support import covering
from zerobench.suites.support.trials import Trials

_step: Any = test_every_step.test_each_step_follows_from_the_one_before
_exact: Any = test_every_step.test_exact_steps
#: A property, an engine that fails it, and the end of the printed command.
_CASES: list[tuple[Any, type, str]] = [
    (test_contract.test_stages_agree, plain.KeepsStaleParametersWhole, "--against "),
    (test_contract.test_world_size_changes_nothing, plain.AveragesOverRanksOnly, "--against "),
    (test_contract.test_settings_change_nothing, plain.DropsTheTailBucket, "--against "),
    (test_contract.test_evaluation_sees_the_trained_values, plain.FlipsTheSign, "--parts evaluation"),
    (test_contract.test_ranks_hold_the_same_state, plain.UsesTheLocalNorm, "UsesTheLocalNorm"),
    (test_steps.test_static_loss_scale_changes_nothing, plain.ClipsTheScaledNorm, "--against "),
    (test_steps.test_clipping, plain.ClipsTheScaledNorm, "--parts norm,parameters"),
    (test_steps.test_overflow_moves_nothing, plain.NeverSkips, "NeverSkips"),
    (test_steps.test_parameters_move, plain.NeverSteps, "NeverSteps"),
    (test_peers.test_equals_ddp_bitwise, plain.ForgetsToAverage, "--against-subject "),
    (test_peers.test_gradients_within_the_bound_of_their_sum, plain.DdpForgetsToAverage, "--bound"),
    (_step.by_stage[2], plain.ClipsTheScaledNorm, "--each-step"),
    (_exact.by_stage[1], plain.ForgetsToAverage, "--zeros-alike"),
    (test_resume.test_resume_elsewhere, checkpoints.LosesAllOptimizerStates, "--saved-by "),
    (test_contract.test_equals_the_canonical_trainer, Dies, "Dies"),
]


@pytest.mark.rotating
@pytest.mark.parametrize(("test", "engine", "end"), _CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_the_command_finds_the_same_place(pool: Pool, test: Any, engine: type, end: str) -> None:
    """It names both runs, the parts that were compared, or how they were."""
    trials = Trials.of(pool, engine)
    failure = failure_of(partial(again(test, 100), trials))
    assert failure
    assert end in str(failure).splitlines()[-1]
    demand_reproduced(failure, pool)


@pytest.mark.parametrize(("engine", "named"), [(plain.ForgetsToAverage, False), (shared.SharesTheStepCounts, True)])
def test_the_other_engine_is_named_if_it_takes_part(pool: Pool, engine: type, named: bool) -> None:
    """If an engine is wrong by itself, the command of a run by turns has its own Scenario alone."""
    trials, one = Trials.of(pool, engine), Scenario(world=2, steps=3)
    with pytest.raises(Disagreement) as caught:
        trials.agree_in_turns(one, one.but(seed=2))
    assert ("--beside" in str(caught.value)) is named
    demand_reproduced(caught.value, pool)


def test_a_refusal_on_all_ranks(pool: Pool) -> None:
    """Its message is one line; the Scenario and the command are a note."""
    trials = Trials.of(pool, RaisesWhenBuilt)
    with pytest.raises(UsageError) as caught:
        trials.run(Scenario(), ["norm"])
    assert str(caught.value) == "this engine cannot be built"
    [note] = caught.value.__notes__
    assert note.splitlines()[-1].endswith(f"--subject {trials.name} --parts norm")


def _fail(group: dist.ProcessGroup, subject: str, scenario: Scenario) -> None:
    raise ValueError(f"a task of {subject} fails")


def test_a_task_that_a_test_alone_runs(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command runs the test again, with its seed: ``zerobench replay`` would run the Scenario without the task."""
    monkeypatch.setattr(covering, "SEED", 7)
    trials = Trials(pool, "torch-ddp")
    with pytest.raises(RankFault) as caught:
        trials.ask(ReplayCommand(Scenario(), trials.name), _fail)
    this = "zerobench.suites.meta.test_reproduce_lines::test_a_task_that_a_test_alone_runs"
    assert str(caught.value).endswith(f"\n  reproduce pytest --pyargs {this} --subject torch-ddp --seed 7")


def test_both_runs_are_printed() -> None:
    """The other Scenario has a line of its own; the command names another subject, or the same for a repetition."""
    one, other = Scenario(stage=3), Scenario(stage=1)
    scenario, against, command = str(between(("x", one), ("x", other), ("norm",))).splitlines()
    assert scenario == '  scenario  {"stage": 3}'
    assert against == '  against   {"stage": 1}'
    assert command.endswith("""--subject x --against '{"stage": 1}' --parts norm""")
    assert between(("x", one), ("y", one)).arguments[2:] == ["--subject", "x", "--against-subject", "y"]
    assert between(("x", one), ("x", one)).arguments[2:] == ["--subject", "x", "--against-subject", "x"]
    assert between(("x", one)).arguments[2:] == ["--subject", "x"]
