"""Knobs: in which fields of their Scenarios the rows of a report differ; what they share is said once, at the top."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from zerobench.scenario import Scenario
from zerobench.workload.models import SIZES

Json = dict[str, Any]
Knobs = dict[str, str]

#: Only stage 3 reads these: what they are elsewhere says nothing.
_STAGE_3 = frozenset({"max_live", "persistence", "prefetch_bucket", "sub_group"})
#: Rows that differ in one of these do not train the same model on as much data: their costs are not compared.
_JOB = ("model", "world", "micro_batch", "accumulation", "device")


def knobs(scenarios: Sequence[Json], stages: Sequence[int | None]) -> list[Knobs]:
    """Of each row the fields that are not the same in all rows, by name, as text; the stage is never one of them."""
    rows = [_fields(Scenario.from_json(json.dumps(scenario))) for scenario in scenarios]
    names = dict.fromkeys(name for row in rows for name in row)
    chosen = [name for name in names if _differs(name, rows, stages)]
    return [
        {name: "-" if _silent(name, stage) else row.get(name, "-") for name in chosen}
        for row, stage in zip(rows, stages, strict=True)
    ]


def label(row: Json, chosen: Knobs) -> str:
    """A row's name in a plot or a sentence."""
    stage = "" if row["stage"] is None else f" stage {row['stage']}"
    settings = (value if name == "model" else f"{name} {value}" for name, value in chosen.items() if value != "-")
    return ", ".join([f"{row['subject']}{stage}", *settings])


def job(chosen: Knobs) -> str:
    """What must be the same for costs to be compared; empty where it is the same in all rows."""
    return ", ".join(value if name == "model" else f"{name} {value}" for name, value in chosen.items() if name in _JOB)


def _differs(name: str, rows: Sequence[Knobs], stages: Sequence[int | None]) -> bool:
    return len({row.get(name) for row, stage in zip(rows, stages, strict=True) if not _silent(name, stage)}) > 1


def _silent(name: str, stage: int | None) -> bool:
    return name in _STAGE_3 and stage != 3


def _fields(scenario: Scenario) -> Knobs:
    """Every field but the stage; the model by its size's name, and apart from that how it recomputes."""
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
    """The size's name, or the model's kind and what of it is not the default."""
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
