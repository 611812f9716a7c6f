"""Results: what a run measured as plain JSON values, the one source of the report's numbers.

``schema/results.json`` describes the value. Sizes are bytes, times seconds; None is what is not known or not finite.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from zerobench import __version__, models
from zerobench.bench import COMPUTE_ONLY, Measured
from zerobench.data import text, text_digest
from zerobench.judge import BUDGET, Judgement
from zerobench.live import METERED_STEP
from zerobench.recording import SCHEMA, Traffic
from zerobench.scenario import Gpt, Scenario
from zerobench.subjects import REGISTRY
from zerobench.theory import memory, offload, traffic
from zerobench.trial import Trial

Json = dict[str, Any]
#: A closed form: the values on one rank by Scenario, model, rank and subject, where known.
_Form = Callable[[Scenario, nn.Module, int, str], Json | None]


def results(
    rows: Sequence[Measured], trial: Trial | None, base: Scenario, warmup: int, model: str, command: str, where: Json
) -> Json:
    """The whole value; ``where`` is the environment, ``model`` the name of the model's size."""
    floor = next((_seconds(row, warmup) for row in rows if row.subject == COMPUTE_ONLY), [])
    value = {
        "schema": SCHEMA,
        "zerobench": __version__,
        "command": command,
        "settings": _settings(base, warmup, model),
        "text": {
            "source": base.data_path or "pydoc_data.topics",
            "bytes": len(text(base.data_path)),
            "sha256": text_digest(base.data_path),
        },
        "budget": trial and {"yardstick": trial.yardstick, "error": trial.error, "times": BUDGET, "step": base.steps},
        "rows": [_row(row, trial, warmup, floor) for row in rows],
        "environment": where,
    }
    return {name: _finite(item) for name, item in value.items()}


def all_right(value: Json) -> bool:
    """Whether no row is wrong or failed, and not every subject unsupported."""
    rows = [row for row in value["rows"] if row["subject"] != COMPUTE_ONLY]
    if any(row["verdict"] not in ("ok", "unsupported") for row in value["rows"]):
        return False
    judgements = [row["judgement"] for row in rows if row["judgement"]]
    return bool(judgements or not rows) and all(judgement["right"] for judgement in judgements)


def _finite(value: Any) -> Any:
    """``value`` with None in place of infinities and NaN, which JSON has not."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _settings(base: Scenario, warmup: int, model: str) -> Json:
    assert isinstance(base.model, Gpt)
    return {
        "model": model,
        "parameters": sum(p.numel() for p in _shapes(base).parameters()),
        "ranks": base.world,
        "dtype": base.dtype,
        "accumulation": base.accumulation,
        "micro_batch": base.micro_batch,
        "context": base.model.context,
        "clip": base.clip,
        "steps": base.steps,
        "warmup": warmup,
        "device": base.device,
        "seed": base.seed,
    }


def _row(row: Measured, trial: Trial | None, warmup: int, floor: Sequence[float]) -> Json:
    trained = row.verdict == "ok"
    judged = trained and trial is not None and row.subject != COMPUTE_ONLY
    return {
        "subject": row.subject,
        "stage": None if row.subject == COMPUTE_ONLY else row.scenario.stage,
        "verdict": row.verdict,
        "reason": row.reason,
        "scenario": json.loads(row.scenario.to_json()),
        "judgement": _judgement(trial.judge(row)) if judged and trial else None,
        "loss": _loss(row) if trained else None,
        "memory": _memory(row) if judged else None,
        "traffic": _traffic(row) if judged else None,
        "offload": _offload(row) if judged else None,
        "time": _time(row, warmup, floor) if trained else None,
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


def _predicted_memory(scenario: Scenario, model: nn.Module, rank: int, subject: str) -> Json | None:
    form = memory.predicted(scenario, model, rank, subject, METERED_STEP + 1)
    if form is None or subject != "reference":
        return form
    return form | {"peak_parameters": memory.parameter_peak(scenario, model, rank, METERED_STEP)}


def _traffic(row: Measured) -> Json:
    """Calls and bytes of one step by rank and collective, measured and, where a closed form is known, predicted."""
    measured = [_plain(each.traffic or {}) for each in row.trajectories]
    return {"measured": measured, "predicted": _by_rank(row, _predicted_traffic)}


def _predicted_traffic(scenario: Scenario, model: nn.Module, rank: int, subject: str) -> Json | None:
    form = traffic.predicted(scenario, model, rank, subject, METERED_STEP)
    return None if form is None else _plain(form)


def _offload(row: Measured) -> Json | None:
    """Bytes off the device and bytes moved in one step, by rank; None where everything is on the device."""
    scenario = row.scenario
    if scenario.optimizer_at == scenario.parameters_at == "none":
        return None
    measured = [dataclasses.asdict(each.offload) for each in row.trajectories if each.offload]
    return {"measured": measured, "predicted": _by_rank(row, _predicted_offload)}


def _predicted_offload(scenario: Scenario, model: nn.Module, rank: int, subject: str) -> Json | None:
    if subject != "reference":
        return None
    return dataclasses.asdict(offload.predicted(scenario, model, METERED_STEP))


def _by_rank(row: Measured, predict: _Form) -> list[Json | None] | None:
    """A closed form's values on each rank; None where there is none for this subject."""
    if row.subject not in REGISTRY:
        return None
    model = _shapes(row.scenario)
    forms = [predict(row.scenario, model, rank, row.subject) for rank in range(row.scenario.world)]
    return None if None in forms else forms


def _plain(ledger: dict[str, Traffic]) -> Json:
    return {collective: dataclasses.asdict(ledger[collective]) for collective in sorted(ledger)}


def _shapes(scenario: Scenario) -> nn.Module:
    """The Scenario's model without its values."""
    with torch.device("meta"):
        return models.build(scenario)


def _seconds(row: Measured, warmup: int) -> list[float]:
    """Of each timed step, that of the slowest rank."""
    return [max(ranks) for ranks in zip(*(each.seconds[warmup:] for each in row.trajectories), strict=True)]


def _time(row: Measured, warmup: int, floor: Sequence[float]) -> Json:
    seconds, scenario = _seconds(row, warmup), row.scenario
    assert isinstance(scenario.model, Gpt)
    low, median, high = statistics.quantiles(seconds, method="inclusive") if len(seconds) > 1 else seconds * 3
    tokens = scenario.leaves * scenario.micro_batch * scenario.model.context
    return {
        "seconds": seconds,
        "median": median,
        "quartiles": [low, high],
        "ratio": statistics.median(a / b for a, b in zip(seconds, floor, strict=True)) if floor else None,
        "tokens_per_second": tokens / median,
    }
