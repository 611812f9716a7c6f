"""Verdicts: the records of properties as the value that conformance.json holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from zerobench import findings
from zerobench.errors import UsageError

Json = dict[str, Any]
SCHEMA = 1
#: By profile: a drawn property that held in fewer Scenarios says nothing. No test draws fewer.
LEAST = {"quick": 1, "default": 2, "thorough": 40}
FINDING, KNOWN, PASS, NOT_OFFERED, NOT_ENOUGH = "finding", "known finding", "pass", "not offered", "not enough"


def compose(shards: Sequence[Sequence[Json]]) -> Json:
    """The whole value, of a header and records for each engine."""
    return {"schema": SCHEMA, "engines": [_engine(header, records) for header, *records in shards]}


def merge(paths: Sequence[Path]) -> Json:
    """The engines of several conformance.json.

    Raises:
        UsageError: if a file is none, or if an engine is in two of them.
    """
    engines: dict[str, Json] = {}
    for path in paths:
        for engine in _read(path)["engines"]:
            if engine["subject"] in engines:
                raise UsageError(f"{engine['subject']} is in two of the files; the second is {str(path)!r}")
            engines[engine["subject"]] = engine
    return {"schema": SCHEMA, "engines": list(engines.values())}


def _read(path: Path) -> Json:
    try:
        value: Json = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {str(path)!r}: {error}") from None
    if wrong := flaw(value):
        raise UsageError(f"{str(path)!r} is not in the form of zerobench/conform/schema/conformance.json: {wrong}")
    return value


def flaw(value: Any) -> str:
    """The first violation of the schema, with its JSON path; empty if there is none."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    schema = json.loads((files("zerobench") / "conform" / "schema" / "conformance.json").read_text(encoding="utf-8"))
    error = best_match(Draft202012Validator(schema).iter_errors(value))
    return "" if error is None else f"{error.json_path}: {error.message[:200]}"


def exit_code(value: Json) -> int:
    """0: no finding; 1: a finding; 2: a property of an engine was not tried often enough, or an engine has none that
    ran, for example because it refuses everything."""
    by_engine = [{each["verdict"] for each in engine["properties"]} for engine in value["engines"]]
    if any(FINDING in found for found in by_engine):
        return 1
    return 2 if any(NOT_ENOUGH in found or not found - {NOT_OFFERED} for found in by_engine) else 0


def _engine(header: Json, records: Sequence[Json]) -> Json:
    known = {slug for record in records for slug in record["known"]}
    return header | {
        "properties": [_property(record, LEAST[header["profile"]]) for record in records],
        "known": [_known(each) for each in findings.everything() if each.slug in known],
    }


def _known(finding: findings.KnownFinding) -> Json:
    return {name: getattr(finding, name) for name in ("slug", "versions", "kind", "explanation", "upstream")}


def _property(record: Json, least: int) -> Json:
    names = sorted(record["drawn"])
    return {
        "name": record["property"],
        "claim": record["claim"],
        "verdict": _verdict(record, least),
        "reason": record["reason"] or max(record["reasons"], key=record["reasons"].get, default=""),
        "known": sorted(record["known"]),
        "finding": record["failure"],
        "cells": [_cell(record, name) for name in names],
    }


def _verdict(record: Json, least: int) -> str:
    """Of a whole property."""
    if record["failure"]:
        return FINDING
    if record["known"]:
        return KNOWN
    ran, drawn = (sum(record[name].values()) for name in ("ran", "drawn"))
    if ran >= least or (record["outcome"] == "passed" and not drawn):
        return PASS
    return NOT_OFFERED if record["outcome"] == "skipped" else NOT_ENOUGH


def _cell(record: Mapping[str, Any], name: str) -> Json:
    """Of one stage and dtype."""
    stage, dtype = name.split("/")
    drawn, refused, aside, ran = (record[each].get(name, 0) for each in ("drawn", "refused", "set_aside", "ran"))
    verdict = PASS if ran else KNOWN if aside else NOT_OFFERED if refused == drawn else NOT_ENOUGH
    if _is_at(record["failure"], int(stage), dtype):
        verdict = FINDING
    counts = {"drawn": drawn, "offered": drawn - refused, "run": ran, "set_aside": aside}
    return {"stage": int(stage), "dtype": dtype, **counts, "verdict": verdict}


def _is_at(failure: Json | None, stage: int, dtype: str) -> bool:
    scenario = (failure or {}).get("scenario")
    return scenario is not None and (scenario.get("stage", 0), scenario.get("dtype", "fp32")) == (stage, dtype)
