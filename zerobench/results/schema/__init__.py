"""The form of results.json and of what travels in pytest-benchmark's extra_info: results.json, a JSON Schema."""

from __future__ import annotations

import functools
import json
import textwrap
from importlib.resources import files
from typing import Any

#: The version of the form: raised with every change that a reader could stumble over.
VERSION = 3


def flaw(value: Any, part: str = "") -> str:
    """Where ``value`` departs from the form, as a JSON path, and how; empty if it does not.

    Args:
        value: as json.loads gives it.
        part: ``extra_info``, say, of the schema's definitions; all of it by default.
    """
    from jsonschema.exceptions import best_match  # here, for the command line starts without it

    error = best_match(_validator(part).iter_errors(value))
    return "" if error is None else f"{error.json_path}: {textwrap.shorten(error.message, 200)}"


@functools.cache
def _validator(part: str) -> Any:
    from jsonschema import Draft202012Validator

    schema = json.loads((files(__name__) / "results.json").read_text(encoding="utf-8"))
    wanted = {"$ref": f"#/$defs/{part}", "$defs": schema["$defs"]} if part else schema
    return Draft202012Validator(wanted)
