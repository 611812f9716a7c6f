"""Meters watch any engine from outside, by dispatcher, allocator and the kernel's counters; no engine knows of them."""

from zerobench.meters.memory import (
    LivingTensors,
    ParameterPeak,
    PeakMeter,
    Stray,
    in_cycles,
    live_tensors,
    pinned,
    resident,
    resident_states,
    unattributed,
)
from zerobench.meters.metering import METERED_STEP, Metered, meter_subject, off_device
from zerobench.meters.offload import OffloadMeter
from zerobench.meters.phases import PhaseMeter
from zerobench.meters.process import beside_tensors, shared
from zerobench.meters.traffic import TrafficMeter
from zerobench.meters.wire import crossing, read_so_far, written_so_far

__all__ = [
    "METERED_STEP",
    "LivingTensors",
    "Metered",
    "OffloadMeter",
    "ParameterPeak",
    "PeakMeter",
    "PhaseMeter",
    "Stray",
    "TrafficMeter",
    "beside_tensors",
    "crossing",
    "in_cycles",
    "live_tensors",
    "meter_subject",
    "off_device",
    "pinned",
    "read_so_far",
    "resident",
    "resident_states",
    "shared",
    "unattributed",
    "written_so_far",
]
