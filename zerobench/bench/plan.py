"""Plan: the cases of a run, each a subject, a stage, an offload target and a Scenario."""

from __future__ import annotations

from collections.abc import Sequence

from zerobench.placement import Placement
from zerobench.results.identity import COMPUTE_ONLY, Case
from zerobench.scenario import LossScale, OffloadTarget, Scenario

#: The stages of the peers. The reference, and a subject of your own, run at every requested stage.
STAGES = {"torch-ddp": 0, "torch-zero1": 1, "torch-fsdp1": 3, "torch-fsdp2": 3, COMPUTE_ONLY: 0}
STAGES_OF_ZERO = (0, 1, 2, 3)


def plan_cases(
    base: Scenario, subjects: Sequence[str], stages: Sequence[int], offload: Sequence[OffloadTarget] = ("none",)
) -> list[Case]:
    """The cases of a run: each subject at its stages, with each offload target if it can offload, compute-only last.

    Optimizer states are offloaded, and at stage 3 parameters as well.
    """
    named = [(name, stage) for name in subjects for stage in ([STAGES[name]] if name in STAGES else stages)]
    named = [each for each in named if each[0] != COMPUTE_ONLY] + [(COMPUTE_ONLY, 0)]
    return [
        Case(name, _offloaded(at_stage(base, stage), target))
        for name, stage in dict.fromkeys(named)
        for target in (offload if Placement.of_stage(stage).optimizer and name not in STAGES else ("none",))
    ]


def _offloaded(scenario: Scenario, target: OffloadTarget) -> Scenario:
    return scenario.but(offload_optimizer=target, offload_param=target if scenario.placement.parameters else "none")


def at_stage(base: Scenario, stage: int) -> Scenario:
    """``base`` at a stage; at stage 3 with settings that really shard, and fp16 with a loss scale all subjects have.

    Stage 3 keeps LayerNorms and biases whole (at most four times the width), other parameters only while they are used,
    and prefetches two blocks.
    """
    width = base.model.width
    if base.dtype == "fp16":
        base = base.but(loss_scale=LossScale(static=256.0))
    if not Placement.of_stage(stage).parameters:
        return base.but(stage=stage)
    return base.but(stage=3, max_live=0, persistence=4 * width + 1, prefetch_bucket=24 * width**2 + 26 * width)
