"""DeepSpeed's learning rate schedules, equal to DeepSpeed 0.19's to the last bit."""

from zerobench.compat.schedules.one_cycle import OneCycle
from zerobench.compat.schedules.range_test import LRRangeTest
from zerobench.compat.schedules.schedule import Schedule
from zerobench.compat.schedules.warmup import WarmupCosineLR, WarmupDecayLR, WarmupLR

SCHEDULES: dict[str, type[Schedule]] = {
    each.__name__: each for each in (LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR, WarmupCosineLR)
}
VALID_LR_SCHEDULES = list(SCHEDULES)

__all__ = [
    "SCHEDULES",
    "VALID_LR_SCHEDULES",
    "LRRangeTest",
    "OneCycle",
    "Schedule",
    "WarmupCosineLR",
    "WarmupDecayLR",
    "WarmupLR",
]
