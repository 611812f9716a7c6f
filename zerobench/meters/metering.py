"""Metering: all meters at once on a fresh subject, between steps and in one step."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from zerobench.digests import held
from zerobench.driver import model_for, run_step, wrap
from zerobench.meters.memory import ParameterPeak, PeakMeter, pinned, resident, resident_states
from zerobench.meters.offload import OffloadMeter
from zerobench.meters.traffic import TrafficMeter
from zerobench.meters.wire import crossing
from zerobench.recording import Memory, OffloadBytes, Traffic
from zerobench.scenario import Scenario
from zerobench.subject import Subject

#: The metered step: by then optimizer states exist and stage 3 knows the order of its units.
METERED_STEP = 2


@dataclass(frozen=True)
class Metered:
    """The meters' readings of a subject on one rank.

    ``wire`` are bytes of all ranks together, known if gloo carries them over loopback. ``held`` is the digest of the
    states that a subject holds after it or, if that is earlier, after the Scenario's last step, if it promises bits.
    """

    memory: Memory
    traffic: dict[str, Traffic]
    wire: int | None
    offload: OffloadBytes
    held: str | None
    losses: list[list[Tensor]]  # of each step to the metered one, to be compared with those that were judged


def meter_subject(
    subject_type: type[Subject], scenario: Scenario, group: dist.ProcessGroup, *, digests: bool = True
) -> Metered:
    """Meter a fresh subject between steps and in step :data:`METERED_STEP`; it leaves nothing behind.

    Without ``digests`` none is made: the states of a model of a billion parameters take seconds.
    """
    rank, cuda = dist.get_rank(group), scenario.device == "cuda"
    pinned_before = pinned() if cuda else 0
    last, digest = min(scenario.steps, METERED_STEP + 1) if digests else 0, None
    with PeakMeter(scenario.device) as peak:
        model = model_for(subject_type, scenario, rank)
        with closing(wrap(model, subject_type, scenario, group)) as subject:
            steps = []
            for index in range(METERED_STEP):
                steps.append(run_step(subject, scenario, index, rank))
                digest = _digest(subject, scenario) if index + 1 == last else digest
            parameters = ParameterPeak(model)
            peak.restart()
            with crossing(group) as wire, OffloadMeter() as moved, TrafficMeter(parameters.observe) as traffic:
                steps.append(run_step(subject, scenario, METERED_STEP, rank))
            sizes = resident_states(subject.resident())
            digest = digest or (_digest(subject, scenario) if digests else None)
            offload = off_device(subject, moved)
            locked = max(pinned() - pinned_before, _page_locked(subject)) if cuda else None
    memory = Memory(
        **sizes,
        peak=peak.bytes,
        peak_parameters=parameters.bytes if traffic.traffic else None,  # measured at collectives only
        host=_known(offload.host, "host" in scenario.elsewhere),
        file=_known(offload.files, "file" in scenario.elsewhere),
        pinned=locked,
        reserved=peak.reserved,
    )
    losses = [step.losses for step in steps]
    return Metered(memory, traffic.traffic, None if cuda else wire.bytes, offload, digest, losses)


def _digest(subject: Subject, scenario: Scenario) -> str | None:
    """That of the states that the subject holds now, if it promises bits."""
    return held(subject.resident(), signed_zeros=scenario.data != "dyadic") if subject.promises_bits else None


def _page_locked(subject: Subject) -> int:
    """Bytes of the subject's page-locked memory off the device; torch's allocator counts only its own."""
    return resident(tensor for tensors in subject.offloaded().host.values() for tensor in tensors if tensor.is_pinned())


def _known(kept: Mapping[str, int], expected: bool) -> int | None:
    """Bytes; 0 if this rank keeps none off the device but others may, None if the Scenario keeps none there."""
    return sum(kept.values()) if kept or expected else None


def off_device(subject: Subject, moved: OffloadMeter) -> OffloadBytes:
    """The bytes that the subject keeps off the device, and the bytes that it moved."""
    kept = subject.offloaded()
    host = {name: size for name, tensors in kept.host.items() if (size := resident(tensors))}
    return OffloadBytes(host, {name: size for name, size in kept.files.items() if size}, dict(moved.bytes))
