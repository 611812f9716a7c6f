"""Versions: values of older schemas as values of the newest one.

Schema 2 added parts. Schema 3 says ``cases`` for rows, ``id`` for case, and one verdict for verdict and judgement.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from zerobench.errors import UsageError
from zerobench.results import Json, schema
from zerobench.results.identity import Case
from zerobench.scenario import Scenario

_PARTS = (
    *("schema", "case_version", "zerobench", "command", "settings", "text", "budget", "peaks"),
    *("cases", "collectives", "kernels", "fits", "environment"),
)
#: Of a row of schema 1 and 2.
_ROW = ("subject", "stage", "verdict", "reason", "scenario", "judgement", "loss", "memory", "traffic", "time")
_ROW_SINCE_2 = ("digest", "held", "offload")
_TIME_SINCE_2 = ("split", "samples_per_second", "flops", "utilisation")
#: What schema 3 calls the verdicts of schema 1 and 2; of ``ok`` the judgement decides.
_VERDICTS = {
    "ok": "measured",
    "failed": "raised",
    **{name: name for name in ("unsupported", "crashed", "timeout", "not measured")},
}


def upgrade(value: Any) -> Json:
    """A value of schema 1, 2 or 3 as one of schema 3, with None for all that it does not say; its text can be encoded.

    Raises:
        UsageError: no such value.
    """
    if not isinstance(value, dict) or not {"rows", "cases"} & value.keys():
        raise UsageError("not a results.json of zerobench, nor a file of its benchmarks")
    if value.get("schema") not in (1, 2, schema.VERSION):
        raise UsageError(f"schema {value.get('schema')!r}; this zerobench reads 1, 2 and {schema.VERSION}")
    for part in ("zerobench", "command", "environment"):
        if part not in value:
            raise UsageError(f"no {part!r} in it")
    value = _encodable(value)
    if value["schema"] == schema.VERSION:
        for case in value["cases"]:
            _scenario(case)
        found: Json = value
        return found
    try:
        return _from_2(_from_1(value) if value["schema"] == 1 else value)
    except (AttributeError, KeyError, TypeError) as error:
        raise UsageError(f"not in the form of schema {value['schema']}: {error}") from None


def _from_1(value: Json) -> Json:
    """As schema 2: the settings say which model a row is of, and its case is worked out."""
    settings = value.get("settings") or {}
    shared = {name: settings.get(name) for name in ("model", "parameters")}
    rows = [_demand_row(row, index) for index, row in enumerate(value["rows"])]
    return value | {"rows": [row | shared | {"case": Case(row["subject"], _scenario(row)).id} for row in rows]}


def _from_2(value: Json) -> Json:
    """As schema 3."""
    cases = [_case(_demand_row(row, index), index) for index, row in enumerate(value["rows"])]
    fits = value.get("fits") and [fit | {"verdict": _VERDICTS[fit["verdict"]]} for fit in value["fits"]]
    named = {name: value.get(name) for name in _PARTS}
    return named | {"schema": schema.VERSION, "cases": cases, "fits": fits}


def _demand_row(row: Any, index: int) -> Json:
    if not isinstance(row, dict):
        raise UsageError(f"row {index} is not an object")
    for part in _ROW:
        if part not in row:
            raise UsageError(f"row {index} has no {part!r}")
    if row["verdict"] not in _VERDICTS:
        raise UsageError(f"row {index} has the verdict {row['verdict']!r}; known are {', '.join(_VERDICTS)}")
    return row


def _case(row: Json, index: int) -> Json:
    """A row of schema 2 as a case."""
    if "case" not in row:
        raise UsageError(f"row {index} has no 'case'")
    _scenario(row)
    time, judgement = row["time"], row["judgement"]
    changed = {
        "verdict": _verdict(row["verdict"], judgement),
        "judgement": judgement and {name: item for name, item in judgement.items() if name != "right"},
        "time": time and _filled(time, _TIME_SINCE_2),
    }
    kept = {name: item for name, item in row.items() if name != "case"}
    return {"id": row["case"]} | _filled(kept, _ROW_SINCE_2) | changed


def _verdict(verdict: str, judgement: Json | None) -> str:
    """A case that ran and was judged is right or wrong."""
    if verdict == "ok" and judgement:
        return "right" if judgement["right"] else "wrong"
    return _VERDICTS[verdict]


def _scenario(case: Json) -> Scenario:
    return Scenario.from_json(json.dumps(case["scenario"]))


def _encodable(value: Any) -> Any:
    """The value, its lone surrogates as escapes: they stand for bytes that were no UTF-8, and no file takes them."""
    if isinstance(value, dict):
        return {_encodable(name): _encodable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value


def _filled(value: Json, names: Sequence[str]) -> Json:
    return value | {name: None for name in names if name not in value}
