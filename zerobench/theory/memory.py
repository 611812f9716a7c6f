"""Bytes of the reference engine's training state on one rank between steps, in closed form, padding included."""

from __future__ import annotations

from fractions import Fraction

from torch import nn

from zerobench.placement import Placement
from zerobench.scenario import Scenario
from zerobench.subject import Bytes
from zerobench.theory import offload
from zerobench.theory.layout import owned, units, whole
from zerobench.theory.rounds import play
from zerobench.workload.data import DTYPES

_FP32 = 4

#: What the numbers of the reference engine are made of; shard and padded are those of a unit, e bytes of an element.
FORMULAS = {
    "parameters": "e(dtype) * sum of padded, of shard alone for units sharded at stage 3; + e(dtype) * frozen elements "
    "at stages 0 to 2; no shards of units whose parameters are offloaded",
    "gradients": "e(accumulator) * sum over trainable units of padded (stages 0 and 1) or shard (stages 2 and 3; with "
    "A = 1 not of units whose optimizer is offloaded)",
    "optimizer": "4 * (2 for Adam, 1 for SGD with momentum, Lion and Adagrad; + 1 for the master in bf16 and fp16, and "
    "of units whose parameters are offloaded) * sum over trainable units of padded (stage 0) or shard (stages 1 to 3), "
    "without those whose optimizer is offloaded",
}


def predicted(scenario: Scenario, model: nn.Module) -> Bytes:
    """Bytes of ``parameters``, ``gradients`` and ``optimizer``.

    They are the same on every rank from the engine's building on (with stage 3's ``max_live``, which may keep units
    whole between micro-steps, too: a step makes their values old).
    """
    cut, placement = units(scenario, model), scenario.placement
    trained = [unit for unit in cut if unit.trainable]
    kept = [unit for unit in cut if not placement.parameters or unit.persistent]
    sharded = [unit for unit in cut if unit not in kept]
    elsewhere = offload.kept_off(scenario, cut)
    stepped_off = offload.stepped_off(scenario, cut)
    stepped_here = [unit for unit in trained if unit not in stepped_off]
    summed_here = trained if scenario.accumulation > 1 else stepped_here
    master = [unit for unit in stepped_here if scenario.dtype != "fp32" or unit in elsewhere]
    size = DTYPES[scenario.dtype].itemsize
    held = owned if placement.optimizer else whole
    return {
        "parameters": size
        * (whole(kept) + owned(u for u in sharded if u not in elsewhere) + _frozen_in_place(scenario, model)),
        "gradients": DTYPES[scenario.accumulator_dtype or "fp32"].itemsize
        * (owned(summed_here) if placement.gradients else whole(trained)),
        "optimizer": _FP32 * (offload.states(scenario) * held(stepped_here) + held(master)),
    }


def _frozen_in_place(scenario: Scenario, model: nn.Module) -> int:
    """Elements of frozen parameters, which are in no unit below stage 3."""
    if scenario.placement.parameters:
        return 0
    return sum(p.numel() for p in model.parameters() if not p.requires_grad)


def chunk_order(scenario: Scenario, model: nn.Module) -> int:
    """Chunks of trainable parameters: the reference engine keeps an int64 index of so many, which is no state."""
    return sum(-(-p.numel() // scenario.chunk) for p in model.parameters() if p.requires_grad)


def parameter_peak(scenario: Scenario, model: nn.Module, rank: int = 0, step: int = 2) -> int:
    """The most bytes of the model's parameters that are whole at once on ``rank`` in a step of the reference engine.

    Below stage 3 all of them always are; at stage 3 the persistent unit is, and the units that the step's touches need
    (:mod:`zerobench.theory.rounds`). The shards, memory of their own, are not counted.
    """
    cut, size = units(scenario, model), DTYPES[scenario.dtype].itemsize
    if not scenario.placement.parameters:
        return size * (whole(cut) + _frozen_in_place(scenario, model))
    sharded_peak = max(micro_step.peaks[rank] for micro_step in play(scenario, model, step + 1)[step])
    return size * (whole(unit for unit in cut if unit.persistent) + sharded_peak)


def paper(stage: int, parameters: int | Fraction, world: int, k: int = 12) -> dict[str, Fraction]:
    """The ZeRO paper's bytes of each state per rank (arXiv 1910.02054, figure 1): 2, 2 and K bytes an element.

    Stage 0: 2 + 2 + K; 1: 4 + K/N; 2: 2 + (2 + K)/N; 3: (4 + K)/N, of ``parameters`` elements each; no padding. K is
    12 for Adam with an fp32 master, momentum and variance.
    """
    elements, sharded = Fraction(parameters), Placement.of_stage(stage)
    shard = elements / world
    return {
        "parameters": 2 * (shard if sharded.parameters else elements),
        "gradients": 2 * (shard if sharded.gradients else elements),
        "optimizer": k * (shard if sharded.optimizer else elements),
    }
