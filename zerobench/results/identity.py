"""Identity: the case, and the name by which two files of results say that they measured the same case."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from zerobench.scenario import Scenario

#: Raised whenever a Scenario comes to mean another run than before: another default, model, data or metered step.
CASE_VERSION = 1
#: The same step without communication; it is in every run and every time is given as a multiple of its.
COMPUTE_ONLY = "compute-only"


@dataclass(frozen=True)
class Case:
    """A subject in a Scenario: what is measured, judged, reported, compared and gated."""

    subject: str  # as --subjects takes it
    scenario: Scenario

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits that stand for the case on every machine."""
        named = [self.subject, json.loads(self.scenario.to_json())]
        canonical = json.dumps(named, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """For people: the subject, its stage, and its offload target if it has one."""
        if self.subject == COMPUTE_ONLY:
            return self.subject
        target = self.scenario.optimizer_at
        return f"{self.subject} stage {self.scenario.stage}" + (f" on {target}" if target != "none" else "")
