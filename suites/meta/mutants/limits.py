"""Engines that take a limit for one element less than it is.

Class of escape: a size that equals a limit of the engine's own padded units. Each is right beside every other size: a
draw has a parameter's or a unit's own size, which whole chunks of all ranks seldom have.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

from zerobench.scenario import Scenario
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class _OneLess(Mutant):
    points_at = Points("traffic")
    limit: str
    #: The case of the accounting whose size equals the limit.
    case: str

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        size = getattr(scenario, self.limit)
        super().__init__(model, scenario.but(**{self.limit: max(size - 1, min(size, 1))}), group)
        self.scenario = scenario


class FreesAUnitAtMaxLive(_OneLess):
    limit, case = "max_live", "max-live-exactly-stage3"


class PrefetchesLessThanFits(_OneLess):
    limit, case = "prefetch_bucket", "prefetch-exactly-stage3"


class CutsAFullReduceBucket(_OneLess):
    limit, case = "reduce_bucket", "buckets-exactly-stage2"


class CutsAFullAllgatherBucket(_OneLess):
    limit, case = "allgather_bucket", "buckets-exactly-stage1"


LIMITS: list[type[_OneLess]] = [
    FreesAUnitAtMaxLive,
    PrefetchesLessThanFits,
    CutsAFullReduceBucket,
    CutsAFullAllgatherBucket,
]
