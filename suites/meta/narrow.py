"""The reference engine, which offers one stage, one precision or one world size."""

from __future__ import annotations

from zerobench.scenario import Scenario
from zerobench.subjects.reference import Reference


class StageZero(Reference):
    """Shards nothing."""

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        return super().unsupported(scenario) or ("it shards nothing: stage 0 only" if scenario.stage else None)


class Fp32(Reference):
    """Trains in one precision."""

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        return super().unsupported(scenario) or ("it trains in fp32 only" if scenario.dtype != "fp32" else None)


class TwoRanks(Reference):
    """Needs a world of two."""

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        return super().unsupported(scenario) or ("it needs a world of two ranks" if scenario.world != 2 else None)


NARROW: list[type[Reference]] = [StageZero, Fp32, TwoRanks]
