"""Load: result files into one value of schema 2, whatever wrote them: ``zerobench run`` or pytest-benchmark.

Files may be merged where one machine measured them with the same versions, and no case is in two of them: what a report
sets side by side was then measured alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zerobench import schema
from zerobench.bench import COMPUTE_ONLY
from zerobench.case import case
from zerobench.compare import case_of
from zerobench.errors import UsageError
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
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the results {str(path)!r}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"the results {str(path)!r} are not JSON: {error}") from None
    try:
        return upgrade(_from_pytest_benchmark(value) if _is_pytest_benchmark(value) else _checked(value))
    except UsageError as error:
        raise UsageError(f"{str(path)!r}: {error}") from None


def _checked(value: Any, part: str = "") -> Any:
    """The value, which has the form of its schema wherever that is the present one."""
    if isinstance(value, dict) and value.get("schema") == schema.VERSION and (wrong := schema.flaw(value, part)):
        raise UsageError(f"not in the form of schema {schema.VERSION} (zerobench/schema/results.json): {wrong}")
    return value


def upgrade(value: Any) -> Json:
    """A value of schema 1 or 2 as one of schema 2, with None for all that it does not say.

    Raises:
        UsageError: no such value.
    """
    if not isinstance(value, dict) or "rows" not in value:
        raise UsageError("not a results.json of zerobench, nor one of pytest-benchmark with zerobench's extra_info")
    if value.get("schema") not in _READABLE:
        raise UsageError(f"schema {value.get('schema')!r}; this zerobench reads {' and '.join(map(str, _READABLE))}")
    for part in ("zerobench", "command", "environment"):
        if part not in value:
            raise UsageError(f"no {part!r} in it")
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
            "environment": _environments(value["environment"], other["environment"]),
        }
    return value


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


def _from_pytest_benchmark(value: Json) -> Json:
    """The measurements that travel in pytest-benchmark's ``extra_info``; other benchmarks are left out."""
    carried = [item for benchmark in value["benchmarks"] for item in _carried(benchmark)]
    environment = value["machine_info"].get("zerobench")
    if not carried or environment is None:
        raise UsageError("no benchmark of it carries zerobench's measurements: it needs extra_info and machine_info")
    for item in carried:
        _checked(item, "extra_info")
    lists = {
        f"{kind}s": _distinct(item[kind] for item in carried if item.get(kind) is not None)
        for kind in ("row", "collective", "kernel", "fit", "peak")
    }
    return {
        "schema": carried[0]["schema"],
        "zerobench": environment["zerobench"],
        "command": "",
        "rows": lists["rows"],
        **{name: lists[name] or None for name in _LISTS},
        "environment": environment,
    }


def _carried(benchmark: Json) -> Iterator[Json]:
    item = benchmark.get("extra_info", {}).get("zerobench")
    if item is not None:
        yield item


def _demand_mergeable(first: str, ours: Json, second: str, theirs: Json) -> None:
    for name in _MACHINE:
        base, other = (value["environment"].get(name) for value in (ours, theirs))
        if base != other:
            raise UsageError(
                f"cannot merge {first!r} and {second!r}: {name} differs, {base!r} and {other!r}; report each by itself"
            )
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


def _distinct(values: Iterable[Json]) -> list[Json]:
    found: list[Json] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _environments(ours: Json, theirs: Json) -> Json:
    """Every value of either; where they differ, both, in a list."""
    return {
        name: theirs.get(name) if name not in ours else _values(ours[name], theirs.get(name, ours[name]))
        for name in {**ours, **theirs}
    }


def _values(ours: Any, theirs: Any) -> Any:
    known = ours if isinstance(ours, list) else [ours]
    return ours if theirs in known or theirs == ours else [*known, theirs]
