"""A drawn test ends at once if a Scenario hangs, says so if it races, and skips if the engine offers no draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import Phase, assume, reject, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from zerobench import findings
from zerobench.errors import Disagreement
from zerobench.findings import KnownFinding
from zerobench.judge.command import ReplayCommand
from zerobench.judge.difference import Difference
from zerobench.judge.judgement import disagreement
from zerobench.model_specs import Odd
from zerobench.ranks import Pool, RankFault
from zerobench.ranks.failure import RankReport
from zerobench.scenario import Scenario
from zerobench.suites.support import drawing, tally
from zerobench.suites.support.trials import IDLE, Trials

pytestmark = pytest.mark.ci

_DRAWS = settings(
    max_examples=20, phases=[Phase.generate, Phase.shrink], derandomize=True, database=None, deadline=None
)
_FOUND = Difference("x", "canonical", Scenario(), 1, 0, "norm", "", "1.0", "2.0")


def _ranks_fail(kind: str) -> RankFault:
    waits = RankReport(0, "timeout", "did not finish within 5 s")
    return RankFault([waits if kind == "timeout" else RankReport(0, "crashed", "was killed by SIGKILL")])


def _drawn(test: Callable[[int], None]) -> Callable[..., None]:
    def on_draw(scenario: int) -> None:
        test(scenario)

    return drawing.draw(on_draw, st.integers(0, 1000), _DRAWS)


def test_a_hang_is_not_repeated() -> None:
    """The first hang ends the test, with its own failure."""
    runs = []

    def hangs(drawn: int) -> None:
        runs.append(drawn)
        if len(runs) > 2:
            raise _ranks_fail("timeout")

    with pytest.raises(RankFault, match="did not finish within 5 s"):
        _drawn(hangs)()
    assert len(runs) == 3


def test_a_death_is_shrunk() -> None:
    """Another failure of a rank is repeated on smaller draws."""
    runs = []

    def dies(drawn: int) -> None:
        runs.append(drawn)
        if drawn > 10:
            raise _ranks_fail("crashed")

    with pytest.raises(RankFault, match="SIGKILL"):
        _drawn(dies)()
    assert runs[-1] == 11


@pytest.mark.parametrize("failure", [disagreement(_FOUND, ReplayCommand(Scenario(), "x")), _ranks_fail("crashed")])
def test_a_race_is_named_first(failure: Exception) -> None:
    """If a Scenario fails and then passes, the message begins with that; the place is the failure's."""
    runs = []

    def races(drawn: int) -> None:
        runs.append(drawn)
        if len(runs) == 3:
            raise failure

    with pytest.raises(Disagreement) as caught:
        _drawn(races)()
    first, *rest = str(caught.value).splitlines()
    assert first == "differs between two runs of the same Scenario"
    assert "\n".join(rest) == str(failure)
    assert caught.value.finding.rank == (1 if isinstance(failure, Disagreement) else 0)


def test_a_race_of_any_error_has_its_message() -> None:
    """Another error that does not come back is named too, with its type."""
    runs = []

    def races(drawn: int) -> None:
        runs.append(drawn)
        if len(runs) == 3:
            raise OSError("no such directory")

    with pytest.raises(
        AssertionError, match=r"^differs between two runs of the same Scenario\nOSError: no such directory"
    ):
        _drawn(races)()


def test_a_failure_that_stays_is_no_race() -> None:
    """Its message begins with the headline."""

    def fails(drawn: int) -> None:
        raise disagreement(replace(_FOUND), ReplayCommand(Scenario(), "x"))

    with pytest.raises(Disagreement, match=r"^x differs from canonical"):
        _drawn(fails)()


def test_no_draw_is_offered(pool: Pool) -> None:
    """The test skips with the engine's most frequent reason."""
    fsdp = Trials(pool, "torch-fsdp2")

    def compares(drawn: int) -> None:
        assume(fsdp.offers(Scenario(stage=drawn % 2)))

    with pytest.raises(pytest.skip.Exception, match="torch-fsdp2 "):
        _drawn(compares)()


def test_one_of_several_is_offered(pool: Pool) -> None:
    """A test that compares several stages skips with the one that is offered."""
    ddp = Trials(pool, "torch-ddp")

    def compares(drawn: int) -> None:
        ddp.offered([Scenario(stage=stage, seed=drawn) for stage in range(4)], "stage")

    with pytest.raises(pytest.skip.Exception, match="torch-ddp offers only stage 0 of 0, 1, 2, 3: torch-ddp"):
        _drawn(compares)()


def test_draws_that_the_suite_itself_drops() -> None:
    """If the engine refuses none, the property tests nothing, and that is an error."""

    def drops(drawn: int) -> None:
        assume(drawn < 0)

    with pytest.raises(Unsatisfiable):
        _drawn(drops)()


def test_a_hang_of_an_engine(pool: Pool) -> None:
    """It is run once and ends long before the time limit; the failure ends with the Scenario and the command."""
    made = Trials(pool, "zerobench.suites.meta.broken:HangsInItsSecondStep")
    scenario = Scenario(model=Odd(hidden=(4,)), steps=2)

    def trains(drawn: int) -> None:
        made.run(scenario.but(seed=drawn))

    with pytest.raises(RankFault) as caught:
        _drawn(trains)()
    assert made.ran == 1
    headline, *_, shown, command = str(caught.value).splitlines()
    assert headline == f"ranks 0, 1 did nothing for {IDLE:g} s"
    assert shown.startswith('  scenario  {"model": ')
    assert command.endswith(f"--subject {made.name}")


@pytest.mark.parametrize("subject", ["torch-ddp", "torch-ddp-copies"])
def test_a_known_finding_is_set_aside(pool: Pool, monkeypatch: pytest.MonkeyPatch, subject: str) -> None:
    """So is one of the engine that a subject derives from; the property goes on to the Scenario beside it, and if there
    is none to other draws."""
    finding = KnownFinding("a/b", "torch", ">=2", ("torch-ddp",), "wrong", "", "", [{"accumulation": [2]}], None)
    monkeypatch.setattr(findings, "everything", lambda: [finding])
    made, seen = Trials(pool, subject), []
    assert made.nearest(Scenario(accumulation=2, clip=1.0)) == Scenario(clip=1.0)

    def sees(drawn: int) -> None:
        seen.append(made.nearest(Scenario(accumulation=1 + drawn % 2), "accumulation").accumulation)

    _drawn(sees)()
    assert set(seen) == {1}
    with pytest.raises(pytest.skip.Exception, match="all draws have the known finding a/b"):
        _drawn(lambda drawn: seen.append(made.nearest(Scenario(accumulation=2), "accumulation").accumulation))()
    assert drawing.course().drawn == drawing.KNOWN_PATIENCE

    def fails_or_is_known(drawn: int) -> None:
        drawing.course().drawn += drawing.KNOWN_PATIENCE
        if drawn > 10:
            raise ValueError("a failure, which shrinks to draws that are known")
        if drawing.course().failure is not None:
            made.nearest(Scenario(accumulation=2), "accumulation")
        reject()

    with pytest.raises((ValueError, pytest.skip.Exception)) as caught:
        _drawn(fails_or_is_known)()
    assert isinstance(caught.value, ValueError)


def test_a_draw_set_aside_counts_where_it_runs() -> None:
    """If a known finding describes a draw in fp16 and the draw runs in fp32, fp16 has none that ran."""
    counts, known, beside = tally.Tally(), Scenario(dtype="fp16"), Scenario()
    counts.begin(known)
    counts.put_aside("a/b")
    counts.runs_beside(known, beside)
    counts.runs_beside(known, Scenario(stage=3))
    counts.passed()
    assert (counts.set_aside, counts.ran) == ({(0, "fp16"): 1}, {(0, "fp32"): 1})
    assert counts.drawn == {(0, "fp16"): 1, (0, "fp32"): 1}


def test_a_draw_counts_where_it_runs() -> None:
    """If an engine refuses bf16 and the draw runs in fp32, then bf16 has no run, and a failure names what ran."""
    counts, drawn, near = tally.Tally(), Scenario(dtype="bf16", stage=1), Scenario(stage=1)
    counts.begin((drawn, 2))
    counts.runs_as(near, "no bf16")
    counts.runs_as(Scenario(stage=3), "the second Scenario of the draw")
    counts.passed()
    assert counts.drawn == {(1, "bf16"): 1, (1, "fp32"): 1}
    assert counts.refused == {(1, "bf16"): 1}
    assert counts.ran == {(1, "fp32"): 1}
    assert counts.reasons == {"no bf16": 1}
    counts.failed()
    assert counts.failing == near
