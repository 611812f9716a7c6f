"""The work of ``zerobench run`` beside the subjects: it counts, judges, meters, and loses no measurement."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

from zerobench.bench import flops, rank_tasks
from zerobench.bench.case_json import cases_json
from zerobench.bench.document import all_right, make_document
from zerobench.bench.oracle_runs import OracleRuns
from zerobench.bench.plan import plan_cases
from zerobench.bench.rounds import Bench, CaseResult
from zerobench.digests import held
from zerobench.driver import to_cpu
from zerobench.errors import RankFailure
from zerobench.machine.environment import describe_environment
from zerobench.meters import PeakMeter
from zerobench.oracles import questions
from zerobench.ranks import Pool
from zerobench.recording import Memory
from zerobench.results import schema
from zerobench.results.identity import Case
from zerobench.scenario import Dtype, Scenario
from zerobench.subject import State
from zerobench.suites.bench import grid
from zerobench.suites.bench.runs import Runs
from zerobench.suites.project.cli.test_judge import double, recorded
from zerobench.workload.sizes import SIZES

_BASE = Scenario(model=SIZES["nano"], steps=2, micro_batch=1, data="text")
_SUBJECT = "zerobench.suites.project.cli.broken:{}"


@pytest.fixture(scope="module")
def ranks() -> Iterator[Pool]:
    """Two ranks for all tests."""
    with Pool(2) as pool:
        yield pool


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_flops_in_every_dtype(dtype: Dtype) -> None:
    """The count is that of fp32, also if a batch has the dtype."""
    scenario = _BASE.but(model=SIZES["vit-tiny"], data="random")
    assert flops.model_flops(mock.Mock(), scenario.but(dtype=dtype)) == flops.model_flops(mock.Mock(), scenario) > 0


def out_of_room(group: dist.ProcessGroup, *args: object) -> None:
    """A task that fails, in the place of a real one."""
    raise MemoryError("no room")


def test_cases_outlive_the_oracles(monkeypatch: pytest.MonkeyPatch) -> None:
    """If oracles and peak fail, the cases keep times and bytes and name the missing parts; not all is right."""
    monkeypatch.setattr(questions, "answer_share", out_of_room)
    monkeypatch.setattr(flops, "peak", out_of_room)
    with Pool(1) as pool:
        bench = Bench(pool, plan_cases(_BASE.but(world=1), ["reference"], [1]), 60.0, lambda what: None)
        bench.train(2)
        bench.meter()
        oracle_runs, peak = OracleRuns.of(bench), bench.peak("fp32")
    told = cases_json(bench.results, oracle_runs, 1, peak)
    value = make_document(told, "zerobench", describe_environment(), oracle_runs=oracle_runs, peaks=[peak])
    case = value["cases"][0]
    assert schema.flaw(value) == ""
    assert (case["verdict"], case["judgement"]) == ("measured", None)
    assert (case["time"]["utilisation"], value["peaks"]) == (None, None)
    assert case["time"]["ratio"] > 0
    assert case["memory"]["measured"][0]["optimizer"] > 0
    for lost in ("not judged", "without a peak to compare with"):
        assert f"{lost}: rank 0 raised MemoryError: no room" in case["reason"]
    assert not all_right(value)


def test_a_point_that_failed_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case of it ends with the first case's failure."""
    failing = mock.Mock(side_effect=RankFailure("no room"))
    monkeypatch.setattr(Runs, "_measure", failing)
    runs = Runs("cpu", lambda what: None)
    for _ in range(2):
        with pytest.raises(RankFailure, match="no room"):
            runs.case(grid.Point("a point", _BASE), Case("reference", _BASE))
    assert failing.call_count == 1


def test_a_wrong_first_subject_spoils_no_judgement() -> None:
    """Skipped steps are the canonical trainer's for all others, and the subject that names others is wrong."""
    names = [_SUBJECT.format("SaysSkipped"), "torch-ddp"]
    with Pool(1) as pool:
        bench = Bench(pool, plan_cases(_BASE.but(world=1), names, [0]), 60.0, lambda what: None)
        bench.train(2)
        told = cases_json(bench.results, OracleRuns.of(bench), 1)
    assert [case["verdict"] for case in told[:2]] == ["wrong", "right"]
    assert "skipped" in told[0]["judgement"]["message"]
    assert told[1]["judgement"]["error"] < 1e-4


@pytest.mark.parametrize(
    ("name", "said"), [("AdvancesNot", "no value that it holds has changed"), ("SendsNothingMetered", "was metered")]
)
def test_what_is_timed_and_metered_is_what_is_judged(name: str, said: str) -> None:
    """The steps in one fence change something, and the metered subject has the losses of the judged one."""
    with Pool(2) as pool:
        bench = Bench(pool, plan_cases(_BASE.but(world=2), [_SUBJECT.format(name)], [0]), 60.0, lambda what: None)
        bench.train(2)
        bench.meter()
    wrong, alone = bench.results
    assert (wrong.verdict, alone.verdict) == ("raised", "measured")
    assert said in wrong.reason
    assert not wrong.trajectories


def test_a_recording_that_cannot_be_told_is_a_failed_case() -> None:
    """A norm of another type fails its own case only."""
    scenario = _BASE.but(world=1)
    both = [recorded(scenario), recorded(scenario)]
    for each in both:
        each.seconds, each.memory, each.traffic, each.held = [0.1, 0.1], Memory(1, 1, 1), {}, "0" * 64
    norm: Any = {"the norm": 3.0}
    both[1].steps[0].norm = norm
    canonical = {"any": recorded(scenario, subject="canonical")}
    oracle_runs = OracleRuns(canonical, double(recorded(scenario)), "canonical", 1e-6)
    case = Case("reference", scenario)
    good, bad = cases_json([CaseResult(case, trajectories=[each]) for each in both], oracle_runs, 0)
    assert good["verdict"] == "right"
    assert (bad["verdict"], bad["judgement"], bad["time"]) == ("raised", None, None)
    assert bad["reason"].startswith("Traceback")


def finished(group: dist.ProcessGroup, case: Case) -> tuple[State | None, bool]:
    """The parameters that a rank sends after a step, and whether any part of the subject remains."""
    rank_tasks.build(group, case)
    seen = weakref.ref(rank_tasks._subjects[case][0])
    rank_tasks.hush(group)
    rank_tasks.timed_step(group, case, 0)
    parameters = rank_tasks.read(group, case)
    assert rank_tasks.run_ahead(group, case, 1, 2) > 0
    rank_tasks.close(group, case)
    return parameters, seen() is not None


def test_equal_parameters_travel_once(ranks: Pool) -> None:
    """Rank 0 sends its parameters; another rank sends only those with other bits."""
    (first, _), (second, _) = ranks.run(finished, Case("reference", _BASE))
    assert first
    assert second is None
    (first, _), (second, _) = ranks.run(finished, Case(_SUBJECT.format("Stale"), _BASE))
    assert first
    assert second
    assert not torch.equal(first["blocks.1.up.weight"], second["blocks.1.up.weight"])


def test_nothing_is_left_of_a_closed_subject(ranks: Pool) -> None:
    """The subject is freed even if it is a cycle and garbage collection was off while steps were timed."""
    assert [left for _, left in ranks.run(finished, Case(_SUBJECT.format("Cycle"), _BASE))] == [False, False]


class _Cyclic:
    def __init__(self) -> None:
        self.itself, self.tensor = self, torch.ones(1)


def test_peaks_start_without_garbage() -> None:
    """Unreachable objects are freed before the meter starts."""
    gc.disable()
    try:
        seen = weakref.ref(_Cyclic())
        assert seen()
        with PeakMeter():
            assert not seen()
    finally:
        gc.enable()


def test_states_have_a_digest_where_bits_are_promised(ranks: Pool) -> None:
    """The states of other subjects are neither copied nor hashed."""
    for subject, promises in (("reference", True), ("torch-ddp", False)):
        digests = [metered.held for metered in ranks.run(rank_tasks.meter, Case(subject, _BASE))]
        assert [digest is not None for digest in digests] == [promises, promises]


def _wrapping(tensor: Tensor, other: Tensor) -> Tensor:
    return TwoTensor(tensor, other)  # type: ignore[no-untyped-call]


def test_digest_of_tensors_that_wrap_others() -> None:
    """It is the digest of the wrapped tensors."""
    inner = torch.ones(3), torch.zeros(3)
    assert held({"optimizer": [_wrapping(*inner)]}) == held({"optimizer": inner})


def test_digest_of_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It depends on every block and on their order, and that of one block is the plain one."""
    plain = held({"optimizer": [torch.arange(16.0)]})
    monkeypatch.setattr("zerobench.digests.BLOCK", 16)
    values = torch.arange(17.0)
    digests = {held({"optimizer": [values.roll(shift)]}) for shift in (0, 4, 8)}
    changed = values.clone()
    changed[-1] = 0
    assert len({*digests, held({"optimizer": [changed]}), plain}) == 5
    monkeypatch.setattr("zerobench.digests.BLOCK", 64)
    assert held({"optimizer": [torch.arange(16.0)]}) == plain


def test_full_values_are_plain() -> None:
    """If a subject returns a shard as it is, an error names it."""
    with pytest.raises(TypeError, match="weight is a TwoTensor; expected a plain tensor of full values"):
        to_cpu({"weight": _wrapping(torch.ones(1), torch.ones(1))})


def test_no_bytes_are_a_number(ranks: Pool) -> None:
    """If one rank keeps no bytes in host memory, it counts as 0; if no state is offloaded, the number is unknown."""
    subject = _SUBJECT.format("Lopsided")
    off = _BASE.but(stage=1, offload_optimizer="cpu")
    some, none = (metered.memory.host for metered in ranks.run(rank_tasks.meter, Case(subject, off)))
    assert some
    assert none == 0
    on_device = ranks.run(rank_tasks.meter, Case(subject, off.but(offload_optimizer="none")))
    assert {(each.memory.host, each.memory.file) for each in on_device} == {(None, None)}
