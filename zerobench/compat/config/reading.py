"""Reading a configuration as DeepSpeed takes it: a dict, a file, or a JSON string in base64."""

from __future__ import annotations

import base64
import copy
import json
import os
import re
from pathlib import Path
from typing import Any

from zerobench.engine.errors import ConfigError

#: A string, which stays; or a comment or a trailing comma, which DeepSpeed's reader (hjson) allows.
_STRING = r'("(?:\\.|[^"\\])*")'
_COMMENTS = re.compile(rf"{_STRING}|#[^\n]*|//[^\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING_COMMAS = re.compile(rf"{_STRING}|,(?=\s*[}}\]])")


def read(config: dict[str, Any] | str | Path) -> dict[str, Any]:
    """The configuration as a dict of the caller's own values.

    Raises:
        ConfigError: it is neither a dict nor a file nor a JSON object, or a key is given twice.
    """
    if isinstance(config, dict):
        return copy.deepcopy(config)
    text = str(config)
    if os.path.isfile(text):  # noqa: PTH113  # Path.is_file() raises if the text is too long for a name
        return _parsed(Path(text).read_text(encoding="utf-8"), f"the configuration file {text!r}")
    try:
        decoded = base64.urlsafe_b64decode(text).decode()
    except ValueError:
        raise ConfigError(f"there is no configuration file {text!r}; give a dict or the path of a JSON file") from None
    return _parsed(decoded, "the configuration in base64")


def _parsed(text: str, what: str) -> dict[str, Any]:
    bare = text
    for allowed in (_COMMENTS, _TRAILING_COMMAS):
        bare = allowed.sub(lambda found: found[1] or "", bare)
    try:
        value = json.loads(bare, object_pairs_hook=lambda pairs: _object(pairs, what))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{what} is not JSON: {error.msg} in line {error.lineno}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{what} is not a JSON object but {type(value).__name__}")
    return value


def _object(pairs: list[tuple[str, Any]], what: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ConfigError(f"{what} gives {', '.join(map(repr, twice))} twice")
    return found
