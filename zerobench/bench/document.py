"""Document: all that a run measured as one plain JSON value, the one source of the report's numbers.

``zerobench/results/schema/results.json`` describes the value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TypeVar

from zerobench import __version__
from zerobench.bench.case_json import finite, tokens
from zerobench.bench.oracle_runs import OracleRuns
from zerobench.judge.judgement import BUDGET
from zerobench.results import Json, schema
from zerobench.results.identity import CASE_VERSION, COMPUTE_ONLY
from zerobench.scenario import Scenario
from zerobench.verdict import FAILING, RAN
from zerobench.workload.data import text, text_digest

T = TypeVar("T")


def make_document(
    cases: Sequence[Json],
    command: str,
    environment: Json,
    *,
    oracle_runs: OracleRuns | None = None,
    peaks: Sequence[Json | None] | None = None,
    collectives: Sequence[Json] | None = None,
    kernels: Sequence[Json] | None = None,
    fits: Sequence[Json] | None = None,
) -> Json:
    """The whole value, of cases that may be of several runs; a peak that failed is None."""
    scenarios = [Scenario.from_json(json.dumps(case["scenario"])) for case in cases]
    value = {
        "schema": schema.VERSION,
        "case_version": CASE_VERSION,
        "zerobench": __version__,
        "command": command,
        "settings": _settings(cases, scenarios),
        "text": _text(scenarios),
        "budget": oracle_runs and _budget(oracle_runs),
        "peaks": [peak for peak in peaks or [] if peak] or None,
        "cases": list(cases),
        "collectives": collectives and list(collectives),
        "kernels": kernels and list(kernels),
        "fits": fits and list(fits),
        "environment": environment,
    }
    return {name: finite(item) for name, item in value.items()}


def all_right(value: Json) -> bool:
    """Whether no case fails or lacks something, and not every subject is unsupported.

    A case that nobody was asked to judge is not wrong.
    """
    if any(case["verdict"] in FAILING | {"not measured"} for case in value["cases"]):
        return False
    cases = [case for case in value["cases"] if case["subject"] != COMPUTE_ONLY]
    ran = [case for case in cases if case["verdict"] in RAN]
    return bool(ran or not cases) and not any(case["reason"] for case in ran)


def _settings(cases: Sequence[Json], scenarios: Sequence[Scenario]) -> Json:
    """What the cases have in common."""
    timed = [(len(case["time"]["seconds"]), each) for case, each in zip(cases, scenarios, strict=True) if case["time"]]
    return {
        "model": _common(case["model"] for case in cases),
        "parameters": _common(case["parameters"] for case in cases),
        "ranks": _common(each.world for each in scenarios),
        "dtype": _common(each.dtype for each in scenarios),
        "accumulation": _common(each.accumulation for each in scenarios),
        "micro_batch": _common(each.micro_batch for each in scenarios),
        "context": _common(tokens(each) for each in scenarios),
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


def _text(scenarios: Sequence[Scenario]) -> Json | None:
    path = _common(each.data_path for each in scenarios if each.data == "text")
    if path is None:
        return None
    return {"source": path or "pydoc_data.topics", "bytes": len(text(path)), "sha256": text_digest(path)}


def _budget(oracle_runs: OracleRuns) -> Json:
    steps = oracle_runs.reference64.scenario.steps
    return {"yardstick": oracle_runs.yardstick, "error": oracle_runs.error, "times": BUDGET, "step": steps}
