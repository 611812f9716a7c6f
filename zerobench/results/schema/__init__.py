"""The form of results.json and of pytest-benchmark's extra_info: results.json, a JSON Schema."""

from __future__ import annotations

import functools
import json
import textwrap
from importlib.resources import files
from typing import Any

#: The version of the form: incremented if a change could break a reader.
VERSION = 3


def flaw(value: Any, part: str = "") -> str:
    """The first violation of the form in ``value``, with its JSON path; empty if there is none.

    Args:
        value: as json.loads gives it.
        part: a name in the schema's definitions, such as ``extra_info``; the whole schema by default.
    """
    from jsonschema.exceptions import best_match  # here: the command line starts without it

    error = best_match(_validator(part).iter_errors(value))
    return "" if error is None else f"{error.json_path}: {textwrap.shorten(error.message, 200)}"


@functools.cache
def _validator(part: str) -> Any:
    from jsonschema import Draft202012Validator

    schema = json.loads((files(__name__) / "results.json").read_text(encoding="utf-8"))
    wanted = {"$ref": f"#/$defs/{part}", "$defs": schema["$defs"]} if part else schema
    return Draft202012Validator(wanted)
