"""Replay: verdicts and exit codes, the settings of a case of ``zerobench run``, memory in proportion to the model."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from zerobench import findings, subjects
from zerobench.bench.replay import compare_again
from zerobench.cli import commands
from zerobench.errors import UsageError
from zerobench.judge.command import ReplayCommand
from zerobench.model_specs import Odd
from zerobench.ranks import Pool
from zerobench.ranks.pool import TIME_LIMIT
from zerobench.scenario import Read, Scenario

_STALE = "zerobench.suites.project.cli.broken:Stale"


class _Watched(Pool):
    """Records its arguments."""

    threads_given = 0
    limits: tuple[float, ...] = ()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        type(self).threads_given = self.threads

    def run(self, task: Callable[..., Any], *args: Any, **how: Any) -> list[Any]:
        type(self).limits += (how["timeout"],)
        return super().run(task, *args, **how)


def test_threads_and_time_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks share all cores, and each step has the time limit."""
    monkeypatch.setattr("zerobench.bench.replay.Pool", _Watched)
    verdict = compare_again(ReplayCommand(Scenario(model=Odd(hidden=(4,)), world=1, steps=2), "reference"))
    assert verdict.right
    assert _Watched.threads_given == len(os.sched_getaffinity(0))
    assert set(_Watched.limits) == {2 * TIME_LIMIT}


def test_a_run_that_goes_on_after_a_save() -> None:
    """With all parts, of which each step has some and the last one all, and its evaluation, a right engine is right."""
    scenario = Scenario(model=Odd(hidden=(4,)), world=1, stage=2)
    verdict = compare_again(ReplayCommand(scenario, "reference", saved_by=scenario.but(steps=1)))
    assert verdict.text == "reference: right, the same bits as the run that nothing interrupts"


@pytest.mark.parametrize("each_step", [False, True])
def test_a_reading_that_does_not_take_place(each_step: bool) -> None:
    """A step of one micro-step has no reading after two, so that none is missing."""
    reads = (Read("gradients", at=2), Read("model_parameters", step=1, at=2))
    scenario = Scenario(model=Odd(hidden=(4,)), world=1, steps=2, reads=reads)
    assert compare_again(ReplayCommand(scenario, "reference", each_step=each_step)).right
    short = scenario.but(accumulation=2, short_steps=((1, 1),))
    assert compare_again(ReplayCommand(short, "reference", each_step=each_step)).right


def test_a_large_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its states are compared after the last step only, which still catches a wrong engine."""
    monkeypatch.setattr("zerobench.bench.replay._ROOM", 0)
    scenario = Scenario(model=Odd(hidden=(14, 14)), world=2, stage=3, steps=2)
    right, wrong = compare_again(ReplayCommand(scenario, "reference")), compare_again(ReplayCommand(scenario, _STALE))
    assert right.text.startswith("reference: right, bit for bit")
    assert not wrong.right
    assert wrong.finding
    assert (wrong.finding.step, wrong.finding.part, wrong.finding.rank) == (1, "parameters", 1)


def test_a_configuration_that_the_subject_refuses() -> None:
    """One line, not the ranks' tracebacks."""
    scenario = Scenario(stage=1, world=1, offload_optimizer="cpu", offload_ratio=1.5)
    with pytest.raises(UsageError, match=r"reference: .*less than or equal to 1"):
        compare_again(ReplayCommand(scenario, "reference"))


def test_replay_of_what_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict and exit code 0, also if the subject does not offer the Scenario."""
    scenario = Scenario(model=Odd(hidden=(4,)), world=2, stage=2, steps=1).to_json()
    assert commands.main(["replay", scenario]) == 0
    assert capsys.readouterr().out.startswith("reference: right, bit for bit ")
    assert commands.main(["replay", scenario, "--subject", "torch-ddp"]) == 0
    assert "torch-ddp does not offer this Scenario: torch-ddp is stage 0" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["wrong", "raised"])
def test_replay_of_a_known_finding(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The output names the finding, whether the subject is wrong or raises."""
    known = findings.known(subjects.load("torch-ddp"))
    found = next((each for each in known if each.kind == kind and each.scenario and not each.costs), None)
    if found is None or found.scenario is None:
        pytest.skip(f"this release of torch has no known finding of DDP that is {kind}")
    assert commands.main(["replay", found.scenario.to_json(), "--subject", "torch-ddp"]) == 1
    said = capsys.readouterr().out
    assert f"known finding {found.slug} ({kind}): " in said
    assert f"reports/findings/{found.slug}" in said


def test_replay_of_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    """The position, both values and the rank, exit code 1, and the command to run it again."""
    scenario = Scenario(model=Odd(hidden=(14, 14)), world=2, stage=3, steps=2).to_json()
    command = ["replay", scenario, "--subject", _STALE]
    assert commands.main(command) == 1
    said = capsys.readouterr().out
    assert "where     step 0, parameters, blocks.1.up.weight[4, 0]" in said
    assert "rank      1\n" in said
    assert "got " in said
    assert "expected " in said
    assert "only the end differs, from element 20 of 70" in said
    reproduce = next(line for line in said.splitlines() if line.strip().startswith("reproduce"))
    assert shlex.split(reproduce)[1:] == ["zerobench", *command]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--against-subject reference", "differs from reference"),
        ("--parts losses,parameters", "differs from canonical"),
        ("--parts losses,norm", "right, the same bits as the canonical trainer"),
        ("--bound", "of the gradients' rounding bound"),
        ("--bytes received", "right, received to the byte"),
    ],
)
def test_replay_by_another_measure(options: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each option compares something else; a difference gives exit code 1 and the same command."""
    scenario = Scenario(model=Odd(hidden=(14, 14)), world=2, stage=3, steps=1).to_json()
    command = ["replay", scenario, "--subject", _STALE, *options.split()]
    code, said = commands.main(command), capsys.readouterr().out
    assert says in said
    assert code == ("differs" in said)
    if code:
        assert shlex.split(said.splitlines()[-1])[1:] == ["zerobench", *command]


def test_the_bound_is_of_one_step() -> None:
    """The bound of a sum is known for the first step alone, so a Scenario of more is refused."""
    with pytest.raises(UsageError, match='the Scenario has 2: give it "steps": 1'):
        compare_again(ReplayCommand(Scenario(steps=2), "reference", bound=True))
