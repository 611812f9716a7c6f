"""Sizes drawn relative to a model: a parameter's, a unit's, a shard's, one less, one more."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from zerobench.model_specs import Gpt, Odd, Vit
from zerobench.scenario import Scenario
from zerobench.suites.support.covering import among
from zerobench.workload import models

#: More than any model has.
ALL = 500_000_000
#: Pieces of a model at most.
PIECES = 16
#: The numbers of ranks before and after a resume. With three, neither number need divide the other.
WORLD_PAIRS = tuple((before, then) for before in range(1, 5) for then in range(1, 5) if before != then)


def leaves_of(before: int, then: int) -> int:
    """The leaves of a step that both numbers of ranks divide: four, and three, six or twelve if one of them is 3."""
    return math.lcm(before, then) if 3 in (before, then) else 4


#: Those after which a step has a power of two of micro-steps: to divide a loss by another number rounds, so that the
#: engines' gradients of a leaf differ.
EXACT_WORLD_PAIRS = tuple(
    (before, then) for before, then in WORLD_PAIRS if (leaves_of(before, then) // then).bit_count() == 1
)


@lru_cache(maxsize=512)
def sizes_of(model: Gpt | Vit | Odd) -> dict[str, tuple[int, ...]]:
    """The elements of each parameter and of each unit (a block, or the whole model), without empty ones."""
    built = models.shapes(Scenario(model=model))
    parameters = {p.numel() for p in built.parameters()} - {0}
    units = {sum(p.numel() for p in each.parameters()) for each in built.get_submodule("blocks").children()}
    return {
        "parameter": tuple(sorted(parameters)),
        "unit": (*sorted(units), sum(p.numel() for p in built.parameters())),
    }


@st.composite
def relative(draw: st.DrawFn, name: str, model: Gpt | Vit | Odd, world: int, least: int = 1) -> int:
    """A size in elements, at least ``least``: all, the least, a share, or about a parameter's, unit's or shard's.

    A size that cuts the model (``least`` is positive) makes at most :data:`PIECES` pieces: each costs a collective.
    """
    kind = draw(among(name, "all", "least", "share", "parameter", "unit", "shard"))
    known = sizes_of(model)
    floor = max(least, known["unit"][-1] // PIECES) if least else 0
    if kind == "all":
        return ALL
    if kind == "least":
        return floor
    if kind == "share":
        return max(floor, known["unit"][-1] // draw(st.sampled_from([2, 5, 20])))
    size = draw(st.sampled_from(known["parameter" if kind == "parameter" else "unit"]))
    if kind == "shard":
        size = -(-size // world)
    return max(floor, size + draw(st.sampled_from([0, -1, 1])))


@st.composite
def chunks(draw: st.DrawFn, model: Gpt | Vit | Odd) -> int:
    """A power of two from 32 on: a common one, or the next below or above a parameter's size."""
    kind = draw(among("chunk", "small", "large", "below", "above"))
    if kind in ("small", "large"):
        return int(draw(st.sampled_from([32, 64] if kind == "small" else [256, 1024])))
    bits = draw(st.sampled_from(sizes_of(model)["parameter"])).bit_length()
    return int(2 ** max(5, bits - 1 if kind == "below" else bits))


@st.composite
def boundaries(draw: st.DrawFn, model: Gpt | Vit | Odd) -> dict[str, int]:
    """Buckets and sub-groups that end where a parameter does, or one element before or after it."""
    known = sizes_of(model)
    large = [each for each in known["parameter"] if each * PIECES >= known["unit"][-1]] or known["parameter"][-1:]
    size = draw(st.sampled_from(large))
    near = max(1, size + draw(st.sampled_from([0, 0, -1, 1])))
    return dict.fromkeys(("reduce_bucket", "allgather_bucket", "sub_group"), near)


def settings_of(model: Gpt | Vit | Odd, world: int, chunk: int) -> st.SearchStrategy[dict[str, Any]]:
    """The settings that must not change a bit: sizes from one element to more than the model, overlap, offload."""
    sizes = {
        "reduce_bucket": 1,
        "allgather_bucket": 1,
        "prefetch_bucket": 0,
        "persistence": 0,
        "max_live": 0,
        "sub_group": 17,
        "max_in_cpu": 0,
    }
    drawn: dict[str, st.SearchStrategy[Any]] = {
        name: relative(name, model, world, least) for name, least in sizes.items()
    }
    drawn |= {
        "overlap": among("overlap", True, False),
        "offload_optimizer": among("offload_optimizer", "none", "cpu", "nvme"),
        "offload_param": among("offload_param", "none", "cpu", "nvme"),
        "offload_ratio": among("offload_ratio", 1.0, 0.5, 0.0),
        "buffer_size": among("buffer_size", 8, 16, 64).map(lambda grids: max(8192, grids * chunk)),
        "buffer_count": among("buffer_count", 8, 5, 3),
        "pipeline_read": among("pipeline_read", False, True),
        "pipeline_write": among("pipeline_write", False, True),
    }
    return st.fixed_dictionaries(drawn)
