"""A validator of the part of JSON Schema that our schemas use; a keyword it does not know is an error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

Schema = dict[str, Any]

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}
_NOTES = {"$schema", "$defs", "title", "description"}


def load(name: str) -> Schema:
    """A schema that travels in the package."""
    text = (files("zerobench") / "schema" / name).read_text(encoding="utf-8")
    schema: Schema = json.loads(text)
    return schema


def errors(value: Any, schema: Schema, root: Schema, where: str = "$") -> Iterator[str]:
    """What is wrong with ``value``, by place; nothing where it fits."""
    for keyword, rule in schema.items():
        if keyword in _NOTES:
            continue
        if keyword == "$ref":
            yield from errors(value, root["$defs"][rule.removeprefix("#/$defs/")], root, where)
        elif keyword == "anyOf":
            if all(any(errors(value, option, root, where)) for option in rule):
                yield f"{where}: {value!r} fits none of {rule}"
        elif keyword in ("properties", "items", "additionalProperties"):
            yield from _inside(keyword, value, schema, root, where)
        elif not _CHECKS[keyword](value, rule):
            yield f"{where}: {value!r} breaks {keyword} {rule}"


def _inside(keyword: str, value: Any, schema: Schema, root: Schema, where: str) -> Iterator[str]:
    rule = schema[keyword]
    if keyword == "items" and isinstance(value, list):
        for index, item in enumerate(value):
            yield from errors(item, rule, root, f"{where}[{index}]")
    elif isinstance(value, dict) and keyword != "items":
        named = schema.get("properties", {})
        for key, item in value.items():
            if keyword == "properties" and key in named:
                yield from errors(item, named[key], root, f"{where}.{key}")
            elif keyword == "additionalProperties" and key not in named:
                yield from (
                    [f"{where}: {key!r} is not known"] if rule is False else errors(item, rule, root, f"{where}.{key}")
                )


_CHECKS: dict[str, Callable[[Any, Any], bool]] = {
    "type": lambda value, rule: any(_TYPES[name](value) for name in ([rule] if isinstance(rule, str) else rule)),
    "const": lambda value, rule: bool(value == rule),
    "enum": lambda value, rule: value in rule,
    "required": lambda value, rule: not isinstance(value, dict) or set(rule) <= value.keys(),
    "minimum": lambda value, rule: not _TYPES["number"](value) or value >= rule,
    "minItems": lambda value, rule: not isinstance(value, list) or len(value) >= rule,
    "maxItems": lambda value, rule: not isinstance(value, list) or len(value) <= rule,
    "pattern": lambda value, rule: not isinstance(value, str) or re.search(rule, value) is not None,
}
