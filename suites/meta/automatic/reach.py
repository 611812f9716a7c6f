"""Reach: the checks that the engine passes, and the engine's lines that each of them runs."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from zerobench.suites.meta.automatic.checks import Check
from zerobench.suites.meta.automatic.enumeration import Mutation, digest, files, read
from zerobench.suites.meta.automatic.mutated import Kernels, Reach, TracingPool
from zerobench.suites.support.trials import Trials

_IMPORT = "import"


@dataclass
class Reached:
    """The lines that each check runs, by its key, and those that run when the engine is imported."""

    engine: str  # the digest of its files
    lines: dict[str, Reach] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def of(self, mutation: Mutation, chosen: list[Check]) -> list[Check]:
        """The checks that run the edited code; those on the definitions in torch only if no other does."""
        everywhere = self._runs(_IMPORT, mutation)
        found = [check for check in chosen if everywhere or self._runs(check.key, mutation)]
        return [check for check in found if check.kernels == "native"] or found

    def _runs(self, key: str, mutation: Mutation) -> bool:
        return mutation.is_reached_by(self.lines[key].get(mutation.file, frozenset()))


def reached(chosen: list[Check], folder: Path, tell: Callable[[str], None]) -> tuple[list[Check], Reached]:
    """The checks that apply, and their lines: from ``folder``, or recorded now and kept there.

    Raises:
        Exception: the engine without a mutation fails a check.
    """
    path = folder / "reached.json"
    known = _load(path)
    for kernels in get_args(Kernels):
        missing = [check for check in chosen if check.kernels == kernels and check.key not in known.seconds]
        if missing:
            try:
                _record(known, missing, kernels, tell)
            finally:  # an interrupted session keeps what it has recorded
                path.write_text(json.dumps(_plain(known)), encoding="utf-8")
    return [check for check in chosen if check.key in known.lines], known


def _record(known: Reached, chosen: list[Check], kernels: Kernels, tell: Callable[[str], None]) -> None:
    with TracingPool(None, kernels) as pool:
        trials = Trials(pool, "reference")
        known.lines[_IMPORT] = pool.taken()
        for place, check in enumerate(chosen, 1):
            tell(f"recording the lines that run with {kernels} kernels: check {place} of {len(chosen)}")
            started = time.monotonic()
            applies = check.applies(trials)
            taken = pool.taken()
            if applies:
                known.lines[check.key] = taken
            known.seconds[check.key] = round(time.monotonic() - started, 3)  # it is recorded


def _engine() -> str:
    return hashlib.sha256("".join(digest(read(file)) for file in files()).encode()).hexdigest()[:16]


def _load(path: Path) -> Reached:
    """The record of this engine; empty if there is none."""
    if path.exists():
        plain = json.loads(path.read_text(encoding="utf-8"))
        lines = plain.pop("lines")
        frozen = {key: {file: frozenset(each) for file, each in reach.items()} for key, reach in lines.items()}
        found = Reached(lines=frozen, **plain)
        if found.engine == _engine():
            return found
    return Reached(_engine())


def _plain(found: Reached) -> dict[str, object]:
    lines = {key: {file: sorted(each) for file, each in reach.items()} for key, reach in found.lines.items()}
    return {"engine": found.engine, "lines": lines, "seconds": found.seconds}
