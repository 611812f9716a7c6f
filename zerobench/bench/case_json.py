"""The JSON of each case of a run; sizes are bytes, times seconds; None is a value that is unknown or not finite."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from zerobench.bench.oracle_runs import OracleRuns
from zerobench.bench.rounds import CaseResult
from zerobench.digests import digest
from zerobench.judge.judgement import Judgement
from zerobench.meters import METERED_STEP
from zerobench.model_specs import Gpt
from zerobench.recording import OffloadBytes, Traffic
from zerobench.results import Json
from zerobench.results.identity import COMPUTE_ONLY
from zerobench.scenario import Scenario
from zerobench.subject import Theory
from zerobench.subjects import load
from zerobench.verdict import Verdict
from zerobench.workload import models
from zerobench.workload.sizes import name_of

#: A closed form: the values on one rank by Scenario, model, rank and the subject's theory, if they are known.
_Form = Callable[[Scenario, nn.Module, int, Theory], Json | None]


def cases_json(
    results: Sequence[CaseResult], oracle_runs: OracleRuns | None, warmup: int, peak: Json | None = None
) -> list[Json]:
    """The cases of one run; ``peak`` is a matrix multiplication's in its dtype."""
    ran = (each for each in results if each.verdict == "measured")
    alone = next((each for each in ran if each.case.subject == COMPUTE_ONLY), None)
    return [finite(_told(each, oracle_runs, warmup, alone, peak)) for each in results]


def finite(value: Any) -> Any:
    """``value`` with None instead of infinities and NaN, which JSON lacks."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def tokens(scenario: Scenario) -> int | None:
    """Tokens in a sample; None if samples have none."""
    return scenario.model.context if isinstance(scenario.model, Gpt) else None


def _told(
    result: CaseResult, oracle_runs: OracleRuns | None, warmup: int, alone: CaseResult | None, peak: Json | None
) -> Json:
    """The case; it fails if its recording cannot be judged, so that the other cases keep their results."""
    try:
        return _case(result, oracle_runs, warmup, alone, peak)
    except Exception:  # noqa: BLE001 - an engine under test may have returned anything
        failed = CaseResult(result.case, "raised", traceback.format_exc())
        return _case(failed, oracle_runs, warmup, alone, peak)


def _case(
    result: CaseResult, oracle_runs: OracleRuns | None, warmup: int, alone: CaseResult | None, peak: Json | None
) -> Json:
    case, scenario, ran = result.case, result.case.scenario, result.verdict == "measured"
    judgement = oracle_runs.judge(result) if ran and oracle_runs and case.subject != COMPUTE_ONLY else None
    metered = ran and all(each.memory for each in result.trajectories)
    exact = judgement is not None and oracle_runs is not None and oracle_runs.exact(result)
    promised = judgement is not None and load(case.subject).promises_bits
    return {
        "id": case.id,
        "subject": case.subject,
        "stage": None if case.subject == COMPUTE_ONLY else scenario.stage,
        "model": name_of(scenario.model),
        "parameters": sum(p.numel() for p in models.shapes(scenario).parameters()),
        "verdict": _verdict(judgement) if judgement else result.verdict,
        "reason": result.reason,
        "scenario": json.loads(scenario.to_json()),
        "judgement": judgement and _judgement(judgement, exact),
        "digest": digest(result.trajectories) if promised else None,
        "held": [each.held for each in result.trajectories] if promised else None,
        "loss": _loss(result) if ran else None,
        "memory": _memory(result) if metered else None,
        "traffic": _traffic(result) if metered else None,
        "offload": _offload(result) if metered else None,
        "time": _time(result, warmup, alone, peak) if ran else None,
    }


def _verdict(judgement: Judgement) -> Verdict:
    return "right" if judgement.right else "wrong"


def _judgement(judgement: Judgement, exact: bool) -> Json:
    return {
        "bitwise": judgement.bitwise,
        "exact": exact,
        "error": judgement.error,
        "budget_used": judgement.budget,
        "message": str(judgement),
    }


def _loss(result: CaseResult) -> Json:
    """The mean over all leaves of the first and the last step."""
    first, last = (
        statistics.fmean(float(loss) for each in result.trajectories for loss in each.steps[at].losses)
        for at in (0, -1)
    )
    return {"first": first, "last": last}


def _memory(result: CaseResult) -> Json:
    """Bytes by rank, measured and, if a closed form is known, predicted."""
    measured = [dataclasses.asdict(each.memory) for each in result.trajectories if each.memory]
    return {"measured": measured, "predicted": _by_rank(result, _predicted_memory)}


def _predicted_memory(scenario: Scenario, model: nn.Module, rank: int, theory: Theory) -> Json | None:
    form = theory.memory(scenario, model, rank, METERED_STEP + 1)
    off = theory.offload(scenario, model, rank, METERED_STEP)
    peak = theory.parameter_peak(scenario, model, rank, METERED_STEP)
    if form is None:
        return None
    elsewhere = {"host": sum(off.host.values()), "file": sum(off.files.values())} if off else {}
    known = {medium: size for medium, size in elsewhere.items() if size or medium in scenario.elsewhere}
    return form | known | ({} if peak is None else {"peak_parameters": peak})


def _traffic(result: CaseResult) -> Json:
    """Calls and bytes of one step by rank and collective, measured and, if a closed form is known, predicted.

    ``wire`` is of all ranks together.
    """
    measured = [_plain(each.traffic or {}) for each in result.trajectories]
    return {
        "measured": measured,
        "predicted": _by_rank(result, _predicted_traffic),
        "wire": result.trajectories[0].wire,
    }


def _predicted_traffic(scenario: Scenario, model: nn.Module, rank: int, theory: Theory) -> Json | None:
    form = theory.traffic(scenario, model, rank, METERED_STEP)
    return None if form is None else _plain(form)


def _offload(result: CaseResult) -> Json | None:
    """Bytes moved off the device and back in one step, by rank; None if all states are on the device."""
    setting = offload_setting(result.case.scenario)
    if setting is None:
        return None
    measured = [_moved(each.offload) for each in result.trajectories if each.offload]
    return {"setting": setting, "measured": measured, "predicted": _by_rank(result, _predicted_offload)}


def offload_setting(scenario: Scenario) -> str | None:
    """The offload targets in force, for people; None if all states are on the device."""
    if scenario.optimizer_at == scenario.parameters_at == "none":
        return None
    return f"optimizer {scenario.optimizer_at}, parameters {scenario.parameters_at}"


def _predicted_offload(scenario: Scenario, model: nn.Module, rank: int, theory: Theory) -> Json | None:
    form = theory.offload(scenario, model, rank, METERED_STEP)
    return None if form is None else _moved(form)


def _moved(seen: OffloadBytes) -> Json:
    names = {"to_host": "to_host", "to_device": "to_device", "read": "file_read", "written": "file_written"}
    return {name: seen.moved.get(counted, 0) for name, counted in names.items()}


def _by_rank(result: CaseResult, predict: _Form) -> list[Json | None] | None:
    """A closed form's values on each rank; None if this subject has none."""
    scenario = result.case.scenario
    if (theory := load(result.case.subject).theory()) is None:
        return None
    model = models.shapes(scenario)
    forms = [predict(scenario, model, rank, theory) for rank in range(scenario.world)]
    return None if None in forms else forms


def _plain(ledger: dict[str, Traffic]) -> Json:
    return {collective: dataclasses.asdict(ledger[collective]) for collective in sorted(ledger)}


def _seconds(result: CaseResult, warmup: int) -> list[float]:
    """The seconds of the slowest rank in each timed step."""
    return [max(ranks) for ranks in zip(*(each.seconds[warmup:] for each in result.trajectories), strict=True)]


def _time(result: CaseResult, warmup: int, alone: CaseResult | None, peak: Json | None) -> Json:
    """``alone`` is compute-only's result."""
    seconds, scenario = _seconds(result, warmup), result.case.scenario
    low, median, high = statistics.quantiles(seconds, method="inclusive") if len(seconds) > 1 else seconds * 3
    beside = _seconds(alone, warmup) if alone else []
    samples, in_sample = scenario.leaves * scenario.micro_batch, tokens(scenario)
    return {
        "seconds": seconds,
        "median": median,
        "quartiles": [low, high],
        "ratio": statistics.median(a / b for a, b in zip(seconds, beside, strict=True)) if beside else None,
        "run_ahead": _slowest([each.run_ahead for each in result.trajectories]),
        "split": _split(result, alone, warmup) if alone else None,
        "samples_per_second": samples / median,
        "tokens_per_second": samples * in_sample / median if in_sample else None,
        "flops": result.flops,
        "utilisation": result.flops / median / peak["flops_per_second"] if peak and result.flops else None,
    }


def _slowest(seconds: list[float | None]) -> float | None:
    """The slowest rank's; None if one is unknown."""
    known = [each for each in seconds if each is not None]
    return max(known) if known and len(known) == len(seconds) else None


def _split(result: CaseResult, alone: CaseResult, warmup: int) -> Json:
    """Medians over rounds; a phase's excess over compute-only's in the same round counts as communication."""
    rounds = []
    for ours, theirs in zip(_phases(result, warmup), _phases(alone, warmup), strict=True):
        own = {phase: min(seconds, theirs[phase]) for phase, seconds in ours.items()}
        rounds.append({**own, "communication": sum(ours.values()) - sum(own.values())})
    return {phase: statistics.median(each[phase] for each in rounds) for phase in rounds[0]}


def _phases(result: CaseResult, warmup: int) -> list[dict[str, float]]:
    """The phases of the slowest rank in each timed step."""
    steps = zip(
        *(zip(each.seconds[warmup:], each.splits[warmup:], strict=True) for each in result.trajectories), strict=True
    )
    return [vars(max(ranks, key=lambda of_rank: of_rank[0])[1]) for ranks in steps]
