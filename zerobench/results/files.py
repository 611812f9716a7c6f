"""Files of results, as ``zerobench run`` and pytest-benchmark write them, read into values of the newest schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zerobench.errors import UsageError
from zerobench.results import Json, schema
from zerobench.results.merging import merge
from zerobench.results.versions import upgrade


def read_all(paths: Sequence[Path]) -> Json:
    """Read and merge result files.

    Raises:
        UsageError: a file that cannot be read or is none of ours, or files that cannot be merged.
    """
    return merge({str(path): read(path) for path in paths})


def read(path: Path) -> Json:
    """One file as a value of the newest schema.

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
    """The value in the form of the newest schema; one of an older schema must have it once it is upgraded."""
    if isinstance(value, dict) and value.get("schema") == schema.VERSION:
        return upgrade(_checked(value))
    return _checked(upgrade(value))


def _checked(value: Json) -> Json:
    if wrong := schema.flaw(value):
        raise UsageError(f"not in the form of schema {schema.VERSION} (zerobench/results/schema/results.json): {wrong}")
    return value


def _is_pytest_benchmark(value: Any) -> bool:
    return isinstance(value, dict) and "benchmarks" in value and "machine_info" in value


def _of_pytest_benchmark(value: Json) -> Any:
    """The whole results, which stand beside the benchmarks: also the cases that have no time and are no benchmark."""
    if "zerobench" not in value:
        raise UsageError("pytest-benchmark's, without zerobench's results: only benchmarks of suites/bench have them")
    return value["zerobench"]
