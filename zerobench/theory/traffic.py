"""Calls and bytes of every collective of one optimizer step of the reference engine, in closed form.

With N ranks a unit's gather or exchange sends and receives (N - 1) * shard * e bytes on every rank, like a ring's
all-gather or reduce-scatter of the padded unit. If N is 1, nothing is sent.

======================  ========================================  ==========================================
data                    times in a step                           elements, and their dtype
======================  ========================================  ==========================================
gradients (all_to_all)  A or, at the boundary, 1                  trainable units, communication dtype
norm check (gather)     1                                         8 bytes a chunk owned + 1 a parameter
0: gradients            1                                         trainable units, accumulator's dtype
1, 2: parameters        1                                         trainable units, dtype
3: persistent unit      1                                         the persistent unit, dtype
3: touched units        A * (forward, and backward's again)       touched units, dtype
3: rounds (gather)      A * (rounds with gathers, offers, + 1)    units // 8 + 1 + 4 bytes
======================  ========================================  ==========================================

A unit's gather or exchange takes ``buckets`` calls, a norm check and a round one. Exchanges are all_to_all calls. A
gather is an all_gather on a GPU; on a CPU, because gloo's is slow, N - 1 sends and as many receives on every rank. The
messages of a round are in CPU memory in either case.

Stage 3 in the common case, an untied gpt of L layers with no prefetch, persistence and max-live: forward gathers
tokens, positions, L blocks, norm and head; backward uses head (still whole), norm and the L blocks, because an
embedding's backward does not use its weight. That is 2 L + 5 gathers in a micro-step. Each is announced in its own
round, which also announces the gradients that are complete by then. The first block, positions and tokens complete
after the last gather: if a batch ends with one of them, it takes a round (with overlap, after the first micro-step, and
not under reentrant recomputation); and one round ends the pass. So if the whole model is one batch, it takes 2 L + 7
rounds, and if every unit is a batch, 2 L + 9. Recomputation changes neither: the recomputing forward and the backward
after it touch the same unit. Tying changes neither: the head's weight is then in the tokens' unit, which is gathered at
the start and at the end of forward and is still whole when backward begins. In general the touches decide:
:mod:`zerobench.theory.rounds`.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from zerobench.recording import Traffic
from zerobench.scenario import Scenario
from zerobench.theory.layout import Unit, owned, units
from zerobench.theory.offload import stepped_off
from zerobench.theory.rounds import forward, play
from zerobench.workload.data import DTYPES

_GATHERS = (
    "(N - 1) * (8 * owned chunks + parameters; 0: + e(accumulator) * shards; 1, 2: + e(dtype) * shards; "
    "3: + e(dtype) * (persistent shard + shards of touched units) + (sharded units // 8 + 5) * rounds)"
)
#: The formulas of the reference engine's numbers.
FORMULAS = {
    "all_to_all": "(N - 1) * e(communication) * trainable shards, at every micro-step or once",
    **dict.fromkeys(("all_gather", "send", "recv"), _GATHERS),
}


def predicted(scenario: Scenario, model: nn.Module, step: int = 2, *, skipped: bool = False) -> dict[str, Traffic]:
    """Calls and bytes by collective in step ``step`` (from 0; the first differs from the rest), the same on every rank:
    its A micro-steps and the update, without any reading; no earlier step was skipped.

    A ``skipped`` step moves as much, because only the devices know that it is skipped, and all-gathers the old values.
    If the CPU updates, it waits for the check, and a skipped step ends with it.
    """
    if scenario.world == 1:
        return {}
    cut = units(scenario, model)
    gathered, agreed = _norm_check(scenario, model, cut), Traffic(0, 0, 0)
    if not (skipped and stepped_off(scenario, cut)):
        gathered += _updated(scenario, cut)
    if scenario.placement.parameters and not all(unit.persistent for unit in cut):
        rounds = [each for micro_step in play(scenario, model, step + 1)[step] for each in micro_step.rounds]
        gathered += _gathered(scenario, rounds)
        agreed = _agreed(scenario, cut, len(rounds))
    total = {"all_to_all": _gradients(scenario, cut), **_gathers(scenario, gathered, agreed)}
    return {collective: traffic for collective, traffic in total.items() if traffic.calls}


def evaluated(scenario: Scenario, model: nn.Module, index: int = 0) -> dict[str, Traffic]:
    """Calls and bytes by collective in evaluation ``index`` (from 0), the same on every rank; ``max_live`` is 0.

    At stage 3 a forward alone, with its rounds: no backward follows. Other stages send nothing.
    """
    cut = units(scenario, model)
    if scenario.world == 1 or not scenario.placement.parameters or all(unit.persistent for unit in cut):
        return {}
    rounds = forward(scenario, model, index).rounds
    return _gathers(scenario, _gathered(scenario, rounds), _agreed(scenario, cut, len(rounds)))


def _gathers(scenario: Scenario, gathered: Traffic, agreed: Traffic) -> dict[str, Traffic]:
    """Gathers, and rounds, by the collectives that carry them."""
    if scenario.device == "cuda":
        return {"all_gather": gathered, **_messages(scenario, agreed)}
    return _messages(scenario, gathered + agreed)


def _messages(scenario: Scenario, gathered: Traffic) -> dict[str, Traffic]:
    number = gathered.calls * (scenario.world - 1)
    return {"send": Traffic(number, gathered.sent, 0), "recv": Traffic(number, 0, gathered.received)}


def _each(scenario: Scenario, calls: int, size: int) -> Traffic:
    """Collectives in which every rank sends ``size`` bytes, in total, to each other rank."""
    others = scenario.world - 1
    return Traffic(calls, others * size, others * size)


def _moved(scenario: Scenario, moved: Iterable[Unit], bucket: int, itemsize: int) -> Traffic:
    moved = list(moved)
    return _each(scenario, sum(unit.buckets(bucket) for unit in moved), owned(moved) * itemsize)


def _gradients(scenario: Scenario, cut: list[Unit]) -> Traffic:
    size = DTYPES[scenario.communication_dtype or scenario.dtype].itemsize
    once = _moved(scenario, (unit for unit in cut if unit.trainable), scenario.reduce_bucket, size)
    return once * (scenario.accumulation if scenario.reduction == "micro_step" else 1)


def _norm_check(scenario: Scenario, model: nn.Module, cut: list[Unit]) -> Traffic:
    """fp64 partial sums of the owned chunks' squares, and a flag for each trainable parameter."""
    chunks = owned(unit for unit in cut if unit.trainable) // scenario.chunk
    flags = sum(p.requires_grad for p in model.parameters())
    return _each(scenario, 1, 8 * chunks + flags)


def _updated(scenario: Scenario, cut: list[Unit]) -> Traffic:
    """An owner's values that the others need: at stage 0 gradients before the update, otherwise parameters after it."""
    placement = scenario.placement
    needed = [unit for unit in cut if unit.trainable and (not placement.parameters or unit.persistent)]
    dtype = scenario.dtype if placement.optimizer else scenario.accumulator_dtype or "fp32"
    return _moved(scenario, needed, scenario.allgather_bucket, DTYPES[dtype].itemsize)


def _gathered(scenario: Scenario, rounds: Iterable[Iterable[Unit]]) -> Traffic:
    """Stage 3's units, once for each round that gathered them."""
    gathered = (unit for each in rounds for unit in each)
    return _moved(scenario, gathered, scenario.allgather_bucket, DTYPES[scenario.dtype].itemsize)


def _agreed(scenario: Scenario, cut: list[Unit], rounds: int) -> Traffic:
    """The agreement rounds: each rank sends the others a bit for each sharded unit and one more, and a count."""
    sharded = sum(not unit.persistent for unit in cut)
    return _each(scenario, rounds, rounds * (sharded // 8 + 1 + 4))
