"""Baseline: the file that the gate holds results to, made from results by ``zerobench gate --update``.

It has the exact numbers as they were and the bounds of the others, never a time. It names no date and no machine but
the platform that digests belong to, so that measuring the same again writes the same file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from zerobench import report
from zerobench.digests import CASE_VERSION
from zerobench.errors import UsageError
from zerobench.gate.cases import BUDGET, Case, Json
from zerobench.results.comparison import Values

SCHEMA = 1
#: A bound is so many times what was measured when it was made: what was measured uses 80 % of it.
SLACK = 1.25


@dataclass(frozen=True)
class Baseline:
    """Cases by name, with bounds in ``bounded``, and the platform of their digests."""

    platform: Json
    cases: Mapping[str, Case]

    @classmethod
    def of(cls, cases: Mapping[str, Case], platform: Json) -> Baseline:
        """What was measured becomes the baseline.

        Raises:
            UsageError: a case is wrong or failed, or none has numbers.
        """
        for case in cases.values():
            if case.state not in ("right", "unsupported"):
                raise UsageError(f"{case.label} is {case.state}: no baseline is made of that\n{case.reason}")
        if not any(case.measured for case in cases.values()):
            why = next((f"; {case.label}: {case.reason}" for case in cases.values() if case.reason), "")
            raise UsageError(f"nothing was measured: a baseline without numbers would pass anything{why}")
        return cls(platform, {name: _with_bounds(case) for name, case in cases.items()})

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Read what :meth:`write` wrote.

        Raises:
            UsageError: not there, not a baseline, or of another schema or case version.
        """
        value = _parse(path)
        try:
            for name, known in (("schema", SCHEMA), ("case_version", CASE_VERSION)):
                if value[name] != known:
                    raise UsageError(f"{path}: {name} {value[name]!r}, expected {known}; make it anew with --update")
            return cls(value["platform"], {name: _case(entry) for name, entry in value["cases"].items()})
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} is not a baseline ({error!r}); make one with --update") from None

    def write(self, path: Path) -> None:
        """Write it, a metric to a line, under a temporary name first.

        Raises:
            UsageError: it cannot be written.
        """
        entries = {name: _entry(case) for name, case in self.cases.items()}
        value = {"schema": SCHEMA, "case_version": CASE_VERSION, "platform": self.platform, "cases": entries}
        text = re.sub(r"\[\s+([^][{}]*?)\s+\]", _on_one_line, json.dumps(value, indent=1, allow_nan=False))
        report.appear(path.parent, {path.name: text + "\n"})


def _with_bounds(case: Case) -> Case:
    return replace(case, bounded={name: _bound(name, values) for name, values in case.bounded.items()})


def _bound(metric: str, values: Values) -> Values:
    """The error budget is its own bound."""
    return tuple(1.0 if metric == BUDGET else math.ceil((value or 0) * SLACK) for value in values)


def _entry(case: Case) -> Json:
    entry = asdict(case)
    del entry["reason"]
    return entry


def _case(entry: Json) -> Case:
    exact, bounded = ({name: tuple(values) for name, values in entry[part].items()} for part in ("exact", "bounded"))
    return Case(entry["subject"], entry["scenario"], entry["state"], exact, bounded, entry["digests"])


def _parse(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no baseline {str(path)!r}; make it with --update") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the baseline {str(path)!r}: {error}") from None


def _on_one_line(found: re.Match[str]) -> str:
    return f"[{' '.join(found[1].split())}]"
