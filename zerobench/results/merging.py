"""Merging: several results as one.

Results may be merged if one machine measured them with the same versions, and no case is in two of them: whatever a
report sets side by side was then measured alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zerobench.errors import UsageError
from zerobench.results import Json, schema
from zerobench.results.comparison import label_of, platform_of
from zerobench.results.identity import COMPUTE_ONLY

#: What was measured beside the cases; None if nothing was.
_LISTS = ("peaks", "collectives", "kernels", "fits")
#: Of the environment: if these differ, so do the numbers.
_MACHINE = ("zerobench", "torch", "platform", "cpu", "cores", "gpu")


def merge(values: Mapping[str, Json]) -> Json:
    """Several values of the newest schema, by the name of their file, as one; settings that differ are left to the
    cases.

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
            "cases": value["cases"] + other["cases"],
            **{name: _both(value[name], other[name]) for name in _LISTS},
            "environment": value["environment"],
        }
    return value | {"environment": _environments([each["environment"] for each in values.values()])}


def _demand_mergeable(first: str, ours: Json, second: str, theirs: Json) -> None:
    base, other = (platform_of(value["environment"], _MACHINE) for value in (ours, theirs))
    for name in _MACHINE:
        if base[name] != other[name]:
            told = f"{base[name]!r} and {other[name]!r}; report each by itself"
            raise UsageError(f"cannot merge {first!r} and {second!r}: {name} differs, {told}")
    if ours["case_version"] != theirs["case_version"]:
        raise UsageError(f"cannot merge {first!r} and {second!r}: their cases are of different versions")
    if ours["text"] and theirs["text"] and ours["text"]["sha256"] != theirs["text"]["sha256"]:
        raise UsageError(f"cannot merge {first!r} and {second!r}: they were trained on different texts")
    known = {_key(case) for case in ours["cases"] if case["subject"] != COMPUTE_ONLY}
    for case in theirs["cases"]:
        if _key(case) in known:
            told = "`zerobench compare` sets two side by side"
            raise UsageError(f"{label_of(case)} is in {second!r} and before it; {told}")


def _key(case: Json) -> tuple[str, str]:
    return case["subject"], json.dumps(case["scenario"], sort_keys=True)


def _common(ours: Json | None, theirs: Json | None) -> Json | None:
    """The settings, None if they differ; a file that has none leaves the other's."""
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
