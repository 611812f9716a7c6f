"""Results: what a run measured as plain JSON values, the one source of the report's numbers.

``schema/results.json`` describes the value. Sizes are bytes, times seconds; None is what is not known or not finite.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from torch import nn

from zerobench import __version__
from zerobench.bench.oracle_runs import Trial
from zerobench.bench.rank_tasks import METERED_STEP
from zerobench.bench.rounds import COMPUTE_ONLY, Measured
from zerobench.digests import CASE_VERSION, case, digest
from zerobench.judge.judgement import BUDGET, Judgement
from zerobench.recording import Offload, Traffic
from zerobench.results import schema
from zerobench.scenario import Gpt, Scenario
from zerobench.subject import Theory
from zerobench.subjects import load
from zerobench.workload import models
from zerobench.workload.data import text, text_digest

Json = dict[str, Any]
T = TypeVar("T")
#: A closed form: the values on one rank by Scenario, model, rank and the subject's theory, if they are known.
_Form = Callable[[Scenario, nn.Module, int, Theory], Json | None]


def document(
    rows: Sequence[Json],
    command: str,
    where: Json,
    *,
    trial: Trial | None = None,
    peaks: Sequence[Json | None] | None = None,
    collectives: Sequence[Json] | None = None,
    kernels: Sequence[Json] | None = None,
    fits: Sequence[Json] | None = None,
) -> Json:
    """The whole value, of rows that may be of several runs; ``where`` is the environment, a peak that failed None."""
    scenarios = [Scenario.from_json(json.dumps(row["scenario"])) for row in rows]
    value = {
        "schema": schema.VERSION,
        "case_version": CASE_VERSION,
        "zerobench": __version__,
        "command": command,
        "settings": _settings(rows, scenarios),
        "text": _text(scenarios),
        "budget": trial and _budget(trial),
        "peaks": [peak for peak in peaks or [] if peak] or None,
        "rows": list(rows),
        "collectives": collectives and list(collectives),
        "kernels": kernels and list(kernels),
        "fits": fits and list(fits),
        "environment": where,
    }
    return {name: _finite(item) for name, item in value.items()}


def rows_of(measured: Sequence[Measured], trial: Trial | None, warmup: int, peak: Json | None = None) -> list[Json]:
    """The rows of one run; ``peak`` is a matrix multiplication's in its dtype."""
    floor = next((row for row in measured if row.subject == COMPUTE_ONLY and row.verdict == "ok"), None)
    return [_finite(_row_of(row, trial, warmup, floor, peak)) for row in measured]


def all_right(value: Json) -> bool:
    """Whether no row is wrong, failed or lacks something, and not every subject is unsupported.

    What nobody was asked to judge is not wrong.
    """
    if any(row["verdict"] not in ("ok", "unsupported") for row in value["rows"]):
        return False
    rows = [row for row in value["rows"] if row["subject"] != COMPUTE_ONLY]
    ran = [row for row in rows if row["verdict"] == "ok"]
    right = all(row["judgement"]["right"] for row in ran if row["judgement"])
    return bool(ran or not rows) and right and not any(row["reason"] for row in ran)


def _finite(value: Any) -> Any:
    """``value`` with None in place of infinities and NaN, which JSON has not."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _settings(rows: Sequence[Json], scenarios: Sequence[Scenario]) -> Json:
    """What the rows have in common."""
    timed = [(len(row["time"]["seconds"]), each) for row, each in zip(rows, scenarios, strict=True) if row["time"]]
    return {
        "model": _common(row["model"] for row in rows),
        "parameters": _common(row["parameters"] for row in rows),
        "ranks": _common(each.world for each in scenarios),
        "dtype": _common(each.dtype for each in scenarios),
        "accumulation": _common(each.accumulation for each in scenarios),
        "micro_batch": _common(each.micro_batch for each in scenarios),
        "context": _common(_tokens(each) for each in scenarios),
        "clip": _common(each.clip for each in scenarios),
        "steps": _common(each.steps for each in scenarios),
        "warmup": _common(each.steps - count for count, each in timed),
        "device": _common(each.device for each in scenarios),
        "seed": _common(each.seed for each in scenarios),
    }


def _common(values: Iterable[T]) -> T | None:
    """The one value that all are, else None."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _tokens(scenario: Scenario) -> int | None:
    """Tokens in a sample; None where samples have none."""
    return scenario.model.context if isinstance(scenario.model, Gpt) else None


def _text(scenarios: Sequence[Scenario]) -> Json | None:
    path = _common(each.data_path for each in scenarios if each.data == "text")
    if path is None:
        return None
    return {"source": path or "pydoc_data.topics", "bytes": len(text(path)), "sha256": text_digest(path)}


def _budget(trial: Trial) -> Json:
    steps = trial.reference64.scenario.steps
    return {"yardstick": trial.yardstick, "error": trial.error, "times": BUDGET, "step": steps}


def _row_of(row: Measured, trial: Trial | None, warmup: int, floor: Measured | None, peak: Json | None) -> Json:
    """The row; a failed one where its subject recorded what cannot be judged, so that the others keep theirs."""
    try:
        return _row(row, trial, warmup, floor, peak)
    except Exception:  # noqa: BLE001 - an engine under test may have returned anything
        failed = Measured(row.subject, row.scenario, "failed", traceback.format_exc())
        return _row(failed, trial, warmup, floor, peak)


def _row(row: Measured, trial: Trial | None, warmup: int, floor: Measured | None, peak: Json | None) -> Json:
    scenario, trained = row.scenario, row.verdict == "ok"
    judged = trained and trial is not None and row.subject != COMPUTE_ONLY
    metered = trained and all(each.memory for each in row.trajectories)
    promised = judged and load(row.subject).promises_bits
    return {
        "case": case(row.subject, scenario),
        "subject": row.subject,
        "stage": None if row.subject == COMPUTE_ONLY else scenario.stage,
        "model": models.name_of(scenario.model),
        "parameters": sum(p.numel() for p in models.shapes(scenario).parameters()),
        "verdict": row.verdict,
        "reason": row.reason,
        "scenario": json.loads(scenario.to_json()),
        "judgement": _judgement(trial.judge(row)) if judged and trial else None,
        "digest": digest(row.trajectories) if promised else None,
        "held": [each.held for each in row.trajectories] if promised else None,
        "loss": _loss(row) if trained else None,
        "memory": _memory(row) if metered else None,
        "traffic": _traffic(row) if metered else None,
        "offload": _offload(row) if metered else None,
        "time": _time(row, warmup, floor, peak) if trained else None,
    }


def _judgement(judgement: Judgement) -> Json:
    return {
        "right": judgement.right,
        "bitwise": judgement.bitwise,
        "error": judgement.error,
        "budget_used": judgement.budget,
        "message": str(judgement),
    }


def _loss(row: Measured) -> Json:
    """The mean over all leaves of the first and the last step."""
    first, last = (
        statistics.fmean(float(loss) for each in row.trajectories for loss in each.steps[at].losses) for at in (0, -1)
    )
    return {"first": first, "last": last}


def _memory(row: Measured) -> Json:
    """Bytes by rank, measured and, where a closed form is known, predicted."""
    measured = [dataclasses.asdict(each.memory) for each in row.trajectories if each.memory]
    return {"measured": measured, "predicted": _by_rank(row, _predicted_memory)}


def _predicted_memory(scenario: Scenario, model: nn.Module, rank: int, theory: Theory) -> Json | None:
    form = theory.memory(scenario, model, rank, METERED_STEP + 1)
    off = theory.offload(scenario, model, rank, METERED_STEP)
    peak = theory.parameter_peak(scenario, model, rank, METERED_STEP)
    if form is None:
        return None
    elsewhere = {"host": sum(off.host.values()), "file": sum(off.files.values())} if off else {}
    known = {place: size for place, size in elsewhere.items() if size or place in scenario.elsewhere}
    return form | known | ({} if peak is None else {"peak_parameters": peak})


def _traffic(row: Measured) -> Json:
    """Calls and bytes of one step by rank and collective, measured and, where a closed form is known, predicted.

    ``wire`` is of all ranks together.
    """
    measured = [_plain(each.traffic or {}) for each in row.trajectories]
    return {
        "measured": measured,
        "predicted": _by_rank(row, _predicted_traffic),
        "wire": row.trajectories[0].wire,
    }


def _predicted_traffic(scenario: Scenario, model: nn.Module, rank: int, theory: Theory) -> Json | None:
    form = theory.traffic(scenario, model, rank, METERED_STEP)
    return None if form is None else _plain(form)


def _offload(row: Measured) -> Json | None:
    """Bytes moved off the device and back in one step, by rank; None where all states are on the device."""
    setting = offload_setting(row.scenario)
    if setting is None:
        return None
    measured = [_moved(each.offload) for each in row.trajectories if each.offload]
    return {"setting": setting, "measured": measured, "predicted": _by_rank(row, _predicted_offload)}


def offload_setting(scenario: Scenario) -> str | None:
    """Where owners keep what they own, for people; None where all states are on the device."""
    if scenario.optimizer_at == scenario.parameters_at == "none":
        return None
    return f"optimizer {scenario.optimizer_at}, parameters {scenario.parameters_at}"


def _predicted_offload(scenario: Scenario, model: nn.Module, rank: int, theory: Theory) -> Json | None:
    form = theory.offload(scenario, model, rank, METERED_STEP)
    return None if form is None else _moved(form)


def _moved(seen: Offload) -> Json:
    names = {"to_host": "to_host", "to_device": "to_device", "read": "file_read", "written": "file_written"}
    return {name: seen.moved.get(counted, 0) for name, counted in names.items()}


def _by_rank(row: Measured, predict: _Form) -> list[Json | None] | None:
    """A closed form's values on each rank; None if this subject has none."""
    if (theory := load(row.subject).theory()) is None:
        return None
    model = models.shapes(row.scenario)
    forms = [predict(row.scenario, model, rank, theory) for rank in range(row.scenario.world)]
    return None if None in forms else forms


def _plain(ledger: dict[str, Traffic]) -> Json:
    return {collective: dataclasses.asdict(ledger[collective]) for collective in sorted(ledger)}


def _seconds(row: Measured, warmup: int) -> list[float]:
    """Of each timed step, that of the slowest rank."""
    return [max(ranks) for ranks in zip(*(each.seconds[warmup:] for each in row.trajectories), strict=True)]


def _time(row: Measured, warmup: int, floor: Measured | None, peak: Json | None) -> Json:
    seconds, scenario = _seconds(row, warmup), row.scenario
    low, median, high = statistics.quantiles(seconds, method="inclusive") if len(seconds) > 1 else seconds * 3
    beside = _seconds(floor, warmup) if floor else []
    samples, tokens = scenario.leaves * scenario.micro_batch, _tokens(scenario)
    return {
        "seconds": seconds,
        "median": median,
        "quartiles": [low, high],
        "ratio": statistics.median(a / b for a, b in zip(seconds, beside, strict=True)) if beside else None,
        "split": _split(row, floor, warmup) if floor else None,
        "samples_per_second": samples / median,
        "tokens_per_second": samples * tokens / median if tokens else None,
        "flops": row.flops,
        "utilisation": row.flops / median / peak["flops_per_second"] if peak and row.flops else None,
    }


def _split(row: Measured, floor: Measured, warmup: int) -> Json:
    """Medians over rounds; what a phase takes beyond compute-only's in the same round counts as communication."""
    rounds = []
    for ours, alone in zip(_phases(row, warmup), _phases(floor, warmup), strict=True):
        own = {phase: min(seconds, alone[phase]) for phase, seconds in ours.items()}
        rounds.append({**own, "communication": sum(ours.values()) - sum(own.values())})
    return {phase: statistics.median(each[phase] for each in rounds) for phase in rounds[0]}


def _phases(row: Measured, warmup: int) -> list[dict[str, float]]:
    """Of each timed step, those of the slowest rank."""
    steps = zip(
        *(zip(each.seconds[warmup:], each.splits[warmup:], strict=True) for each in row.trajectories), strict=True
    )
    return [vars(max(ranks, key=lambda of_rank: of_rank[0])[1]) for ranks in steps]
