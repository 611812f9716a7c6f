"""The closed forms of the reference engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import nn

from zerobench.recording import OffloadBytes, Traffic
from zerobench.scenario import Scenario
from zerobench.subject import Bytes, Theory
from zerobench.theory import memory, offload, traffic


class ReferenceTheory(Theory):
    """Every number is known."""

    formulas: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "resident": memory.FORMULAS,
        "traffic": traffic.FORMULAS,
        **dict.fromkeys(("host", "files", "moved"), offload.FORMULAS),
    }

    def memory(self, scenario: Scenario, model: nn.Module, rank: int = 0, steps: int = 1) -> Bytes:
        return memory.predicted(scenario, model)

    def traffic(self, scenario: Scenario, model: nn.Module, rank: int = 0, step: int = 2) -> dict[str, Traffic]:
        return traffic.predicted(scenario, model, step)

    def skipped(self, scenario: Scenario, model: nn.Module, rank: int = 0, step: int = 2) -> dict[str, Traffic]:
        return traffic.predicted(scenario, model, step, skipped=True)

    def evaluation(self, scenario: Scenario, model: nn.Module, rank: int = 0, index: int = 0) -> dict[str, Traffic]:
        return traffic.evaluated(scenario, model, index)

    def offload(self, scenario: Scenario, model: nn.Module, rank: int = 0, step: int = 2) -> OffloadBytes:
        return offload.predicted(scenario, model, step)

    def parameter_peak(self, scenario: Scenario, model: nn.Module, rank: int = 0, step: int = 2) -> int:
        return memory.parameter_peak(scenario, model, rank, step)
