"""Knobs: the fields that differ between the Scenarios of a report; the common fields are listed once, at the top."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from zerobench.placement import Placement
from zerobench.results import Json
from zerobench.scenario import Scenario
from zerobench.workload.sizes import SIZES

Knobs = dict[str, str]

#: Only stage 3 reads these: their values at other stages have no effect.
_STAGE_3 = frozenset({"max_live", "persistence", "prefetch_bucket"})
#: If cases differ in one of these, the model or the amount of data differs: their costs are not compared.
_JOB = ("model", "world", "micro_batch", "accumulation", "device")


def differing_fields(scenarios: Sequence[Json], stages: Sequence[int | None]) -> list[Knobs]:
    """For each case the fields that differ between cases, by name, as text; the stage is never one of them."""
    cases = [_fields(Scenario.from_json(json.dumps(scenario))) for scenario in scenarios]
    names = dict.fromkeys(name for fields in cases for name in fields)
    chosen = [name for name in names if _differs(name, cases, stages)]
    return [
        {name: "-" if _silent(name, stage) else fields.get(name, "-") for name in chosen}
        for fields, stage in zip(cases, stages, strict=True)
    ]


def label(case: Json, chosen: Knobs) -> str:
    """A case's name in a plot or a sentence."""
    stage = "" if case["stage"] is None else f" stage {case['stage']}"
    settings = (value if name == "model" else f"{name} {value}" for name, value in chosen.items() if value != "-")
    return ", ".join([f"{case['subject']}{stage}", *settings])


def job(chosen: Knobs) -> str:
    """The settings that comparable costs share; empty if they are the same in all cases."""
    return ", ".join(value if name == "model" else f"{name} {value}" for name, value in chosen.items() if name in _JOB)


def _differs(name: str, cases: Sequence[Knobs], stages: Sequence[int | None]) -> bool:
    return len({fields.get(name) for fields, stage in zip(cases, stages, strict=True) if not _silent(name, stage)}) > 1


def _silent(name: str, stage: int | None) -> bool:
    return name in _STAGE_3 and not (stage is not None and Placement.of_stage(stage).parameters)


def _fields(scenario: Scenario) -> Knobs:
    """Every field except the stage; the model as the name of its size, and separately its recomputation."""
    flat: Knobs = {"model": _model(scenario.model), "recompute": scenario.model.recompute}
    for field in dataclasses.fields(scenario):
        value = getattr(scenario, field.name)
        if field.name in ("model", "stage"):
            continue
        if dataclasses.is_dataclass(value):
            flat |= {
                f"{field.name}.{inner.name}": _text(getattr(value, inner.name)) for inner in dataclasses.fields(value)
            }
        else:
            flat[field.name] = _text(value)
    return flat


def _model(model: Any) -> str:
    """The size's name, or the model's kind and its fields that differ from the default."""
    plain = dataclasses.replace(model, recompute="none")
    for name, size in SIZES.items():
        if size == plain:
            return name
    changed = (f.name for f in dataclasses.fields(plain) if f.name != "kind" and getattr(plain, f.name) != f.default)
    return " ".join([plain.kind, *(f"{name}={_text(getattr(plain, name))}" for name in changed)])


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "x".join(map(_text, value)) if isinstance(value, tuple) else "default" if value is None else str(value)
