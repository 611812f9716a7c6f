"""Meters watch any engine from outside: the dispatcher, the allocator, the kernel's counters. No engine knows of them."""

from zerobench.meters.memory import ParameterPeak, PeakMeter, Stray, live_tensors, resident, unattributed
from zerobench.meters.traffic import TrafficMeter
from zerobench.meters.wire import LoopbackMeter

__all__ = [
    "LoopbackMeter",
    "ParameterPeak",
    "PeakMeter",
    "Stray",
    "TrafficMeter",
    "live_tensors",
    "resident",
    "unattributed",
]
