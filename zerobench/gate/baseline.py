"""Baseline: the file that the gate compares results with; ``zerobench gate --update`` makes it from results.

It has the exact numbers and the bounds of the others, never a time. It names no date, and of the machine only the
platform of the digests: if the measurements are equal, so is the file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from zerobench.errors import UsageError
from zerobench.gate.cases import BUDGET, GatedCase
from zerobench.machine.files import write_together
from zerobench.results import Json
from zerobench.results.comparison import Values
from zerobench.results.identity import CASE_VERSION
from zerobench.verdict import PASSED

SCHEMA = 3
#: Schema 1 called the verdict of a case its state; schema 2 did not know exact data.
_READABLE = (1, 2, SCHEMA)
#: The ratio of a bound to the measurement that it was made from: that measurement uses 80 % of the bound.
SLACK = 1.25


@dataclass(frozen=True)
class Baseline:
    """Cases by id, with bounds in ``bounded``, and the platform of their digests."""

    platform: Json
    cases: Mapping[str, GatedCase]

    @classmethod
    def of(cls, cases: Mapping[str, GatedCase], platform: Json) -> Baseline:
        """The baseline of measured cases.

        Raises:
            UsageError: if a case is wrong or failed, or if none has numbers.
        """
        for case in cases.values():
            if case.verdict not in PASSED | {"unsupported"}:
                raise UsageError(f"{case.label} is {case.verdict}: no baseline is made of that\n{case.reason}")
        if not any(case.measured for case in cases.values()):
            why = next((f"; {case.label}: {case.reason}" for case in cases.values() if case.reason), "")
            raise UsageError(f"nothing was measured: a baseline without numbers would pass anything{why}")
        return cls(platform, {name: _with_bounds(case) for name, case in cases.items()})

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Read the file that :meth:`write` wrote.

        Raises:
            UsageError: if it is missing, not a baseline, or of another schema or case version.
        """
        value = _parse(path)
        _check_kind(value, path)
        try:
            for name, known in (("schema", _READABLE), ("case_version", (CASE_VERSION,))):
                if value[name] not in known:
                    raise UsageError(
                        f"{path}: {name} {value[name]!r}, expected {known[-1]}; make it anew with --update"
                    )
            return cls(value["platform"], {name: _read(case, value["schema"]) for name, case in value["cases"].items()})
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} is not a baseline ({error!r}); make one with --update") from None

    def write(self, path: Path) -> None:
        """Write it, a metric to a line, under a temporary name first.

        Raises:
            UsageError: if it cannot be written, or if the file is there and something else, such as results.
        """
        check_replaceable(path)
        cases = {name: _written(case) for name, case in self.cases.items()}
        value = {"schema": SCHEMA, "case_version": CASE_VERSION, "platform": self.platform, "cases": cases}
        text = re.sub(r"\[\s+([^][{}]*?)\s+\]", _on_one_line, json.dumps(value, indent=1, allow_nan=False))
        write_together(path.parent, {path.name: text + "\n"})


def check_replaceable(path: Path) -> None:
    """Check that :meth:`Baseline.write` would replace no other file than a baseline, whole or damaged.

    Raises:
        UsageError: it would.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    _check_kind(value, path)


def _check_kind(value: Any, path: Path) -> None:
    """Results and other JSON are no baseline."""
    if isinstance(value, dict) and isinstance(value.get("cases"), list):
        raise UsageError(f"{path} has results, and is no baseline; give it by --results, or to zerobench compare")
    if not isinstance(value, dict) or "schema" not in value:
        raise UsageError(f"{path} is not a baseline: it has no schema; make one in another file with --update")


def _with_bounds(case: GatedCase) -> GatedCase:
    return replace(case, bounded={name: _bound(name, values) for name, values in case.bounded.items()})


def _bound(metric: str, values: Values) -> Values:
    """The error budget is its own bound."""
    return tuple(1.0 if metric == BUDGET else math.ceil((value or 0) * SLACK) for value in values)


def _written(case: GatedCase) -> Json:
    value = asdict(case)
    del value["reason"]
    return value


def _read(case: Json, version: int) -> GatedCase:
    exact, bounded = ({name: tuple(values) for name, values in case[part].items()} for part in ("exact", "bounded"))
    verdict = case["state" if version == 1 else "verdict"]
    exact_data = version > 2 and case["exact_data"]
    return GatedCase(case["subject"], case["scenario"], verdict, exact, bounded, case["digests"], exact_data)


def _parse(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no baseline {str(path)!r}; make it with --update") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the baseline {str(path)!r}: {error}") from None


def _on_one_line(found: re.Match[str]) -> str:
    return f"[{' '.join(found[1].split())}]"
