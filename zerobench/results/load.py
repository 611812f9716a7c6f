"""Load: result files into one value of schema 2, whatever wrote them: ``zerobench run`` or pytest-benchmark.

Files may be merged where one machine measured them with the same versions, and no case is in two of them: what a report
sets side by side was then measured alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zerobench.bench.rounds import COMPUTE_ONLY
from zerobench.digests import case
from zerobench.errors import UsageError
from zerobench.results import schema
from zerobench.results.comparison import case_of, machine
from zerobench.scenario import Scenario

Json = dict[str, Any]

_READABLE = (1, schema.VERSION)
_VERDICTS = ("ok", "unsupported", "failed", "crashed", "timeout", "not measured")
_ROW = ("subject", "stage", "verdict", "reason", "scenario", "judgement", "loss", "memory", "traffic", "time")
_PARTS = (
    *("schema", "case_version", "zerobench", "command", "settings", "text", "budget", "peaks"),
    *("rows", "collectives", "kernels", "fits", "environment"),
)
#: Of these, what was measured beside the rows; None where nothing was.
_LISTS = ("peaks", "collectives", "kernels", "fits")
#: What schema 2 added; None where a file of schema 1 has nothing to say.
_ROW_SINCE_2 = ("digest", "offload")
_TIME_SINCE_2 = ("split", "samples_per_second", "flops", "utilisation")
#: Of the environment: where these differ, so do the numbers.
_MACHINE = ("zerobench", "torch", "platform", "cpu", "cores", "gpu")


def load(paths: Sequence[Path]) -> Json:
    """Read and merge result files.

    Raises:
        UsageError: a file that cannot be read or is none of ours, or files that cannot be merged.
    """
    return merge({str(path): read(path) for path in paths})


def read(path: Path) -> Json:
    """One file as a value of schema 2.

    Raises:
        UsageError: it cannot be read or is none of ours; the message says what it lacks.
    """
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text, parse_constant=lambda name: None)  # JSON has neither NaN nor infinities
    except OSError as error:
        raise UsageError(f"cannot read the results {str(path)!r}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"the results {str(path)!r} are not JSON: {error}") from None
    try:
        return _understood(_of_pytest_benchmark(value) if _is_pytest_benchmark(value) else value)
    except UsageError as error:
        raise UsageError(f"{str(path)!r}: {error}") from None


def _understood(value: Any) -> Json:
    """As schema 2. Schema 1 has no form written down: its values must have that of schema 2 once they are upgraded."""
    if isinstance(value, dict) and value.get("schema") == schema.VERSION:
        return upgrade(_checked(value))
    try:
        return _checked(upgrade(value))
    except (AttributeError, TypeError) as error:
        raise UsageError(f"not in the form of schema 1: {error}") from None


def _checked(value: Json) -> Json:
    if wrong := schema.flaw(value):
        raise UsageError(f"not in the form of schema {schema.VERSION} (zerobench/results/schema/results.json): {wrong}")
    return value


def upgrade(value: Any) -> Json:
    """A value of schema 1 or 2 as one of schema 2, with None for all that it does not say; its text can be encoded.

    Raises:
        UsageError: no such value.
    """
    if not isinstance(value, dict) or "rows" not in value:
        raise UsageError("not a results.json of zerobench, nor a file of its benchmarks")
    if value.get("schema") not in _READABLE:
        raise UsageError(f"schema {value.get('schema')!r}; this zerobench reads {' and '.join(map(str, _READABLE))}")
    for part in ("zerobench", "command", "environment"):
        if part not in value:
            raise UsageError(f"no {part!r} in it")
    value = _encodable(value)
    settings = value.get("settings") or {}
    rows = [_row(row, index, settings) for index, row in enumerate(value["rows"])]
    return {name: value.get(name) for name in _PARTS} | {"schema": schema.VERSION, "rows": rows}


def merge(values: Mapping[str, Json]) -> Json:
    """Several values of schema 2, by the name of their file, as one; settings that differ are left to the rows.

    Raises:
        UsageError: from different machines or versions, of other cases or texts, or with a case in two of them.
    """
    (first, value), *others = values.items()
    for name, other in others:
        _demand_mergeable(first, value, name, other)
        value = {
            "schema": schema.VERSION,
            "case_version": value["case_version"],
            "zerobench": value["zerobench"],
            "command": "\n".join(dict.fromkeys(filter(None, (value["command"], other["command"])))),
            "settings": _common(value["settings"], other["settings"]),
            "text": value["text"] or other["text"],
            "budget": value["budget"] if value["budget"] == other["budget"] else None,
            "rows": value["rows"] + other["rows"],
            **{name: _both(value[name], other[name]) for name in _LISTS},
            "environment": value["environment"],
        }
    return value | {"environment": _environments([each["environment"] for each in values.values()])}


def _encodable(value: Any) -> Any:
    """The value, its lone surrogates as escapes: they stand for bytes that were no UTF-8, and no file takes them."""
    if isinstance(value, dict):
        return {_encodable(name): _encodable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value


def _row(row: Any, index: int, settings: Json) -> Json:
    """One row; of schema 1 the settings say which model it is of, and its case is worked out."""
    if not isinstance(row, dict):
        raise UsageError(f"row {index} is not an object")
    for part in _ROW:
        if part not in row:
            raise UsageError(f"row {index} has no {part!r}")
    if row["verdict"] not in _VERDICTS:
        raise UsageError(f"row {index} has the verdict {row['verdict']!r}; known are {', '.join(_VERDICTS)}")
    scenario = Scenario.from_json(json.dumps(row["scenario"]))
    if "case" not in row:
        row = row | {name: settings.get(name) for name in ("model", "parameters")}
        row["case"] = case(row["subject"], scenario)
    time = row["time"] and _filled(row["time"], _TIME_SINCE_2)
    return _filled(row, _ROW_SINCE_2) | {"time": time}


def _filled(value: Json, names: Sequence[str]) -> Json:
    return value | {name: None for name in names if name not in value}


def _is_pytest_benchmark(value: Any) -> bool:
    return isinstance(value, dict) and "benchmarks" in value and "machine_info" in value


def _of_pytest_benchmark(value: Json) -> Any:
    """The whole results, which stand beside the benchmarks: also what has no time, so that it is no benchmark."""
    if "zerobench" not in value:
        raise UsageError("pytest-benchmark's, without zerobench's results: only benchmarks of suites/bench have them")
    return value["zerobench"]


def _demand_mergeable(first: str, ours: Json, second: str, theirs: Json) -> None:
    base, other = (machine(value["environment"], _MACHINE) for value in (ours, theirs))
    for name in _MACHINE:
        if base[name] != other[name]:
            told = f"{base[name]!r} and {other[name]!r}; report each by itself"
            raise UsageError(f"cannot merge {first!r} and {second!r}: {name} differs, {told}")
    if ours["case_version"] != theirs["case_version"]:
        raise UsageError(f"cannot merge {first!r} and {second!r}: their cases are of different versions")
    if ours["text"] and theirs["text"] and ours["text"]["sha256"] != theirs["text"]["sha256"]:
        raise UsageError(f"cannot merge {first!r} and {second!r}: they were trained on different texts")
    cases = {_case(row) for row in ours["rows"] if row["subject"] != COMPUTE_ONLY}
    for row in theirs["rows"]:
        if _case(row) in cases:
            raise UsageError(
                f"{case_of(row)} is in {second!r} and before it; `zerobench compare` sets two side by side"
            )


def _case(row: Json) -> tuple[str, str]:
    return row["subject"], json.dumps(row["scenario"], sort_keys=True)


def _common(ours: Json | None, theirs: Json | None) -> Json | None:
    """The settings, None where they differ; a file that has none leaves the other's."""
    if ours is None or theirs is None:
        return ours or theirs
    return {name: value if theirs.get(name) == value else None for name, value in ours.items()}


def _both(ours: list[Json] | None, theirs: list[Json] | None) -> list[Json] | None:
    return _distinct([*(ours or []), *(theirs or [])]) or None


def _distinct(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _environments(those: Sequence[Json]) -> Json:
    """Every name of any of them, with what :func:`_together` makes of its values."""
    names = dict.fromkeys(name for each in those for name in each)
    return {name: _together([each[name] for each in those if name in each]) for name in names}


def _together(values: Sequence[Any]) -> Any:
    """The one value that all are; one object of objects with the same names; else all that differ, in a list."""
    if all(isinstance(value, dict) and value.keys() == values[0].keys() for value in values):
        return _environments(values)
    found = _distinct(values)
    return found[0] if len(found) == 1 else found
