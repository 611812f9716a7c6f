"""Hypothesis strategies that draw Scenarios."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from zerobench.scenario import LossScale, Odd, Optimizer, Scenario
from zerobench.suites.support.drawing import draw

#: Rare: if a peculiarity is on in every model, it hides others that only show without it.
_seldom = st.sampled_from([False, False, True])

WORLDS = st.sampled_from([1, 2, 3, 3, 4])  # a + b = b + a: two ranks cannot show a wrong order
STAGES = st.integers(0, 3)
DTYPES = st.sampled_from(["fp32", "fp32", "bf16", "fp16"])

#: Static loss scales that leave fp16's range alone on these models.
_scales = st.sampled_from([1.0, 16.0, 256.0])


#: The flags of an odd model.
PECULIAR = (
    "tied",
    "functional",
    "reused",
    "frozen",
    "unused",
    "routed",
    "scalar",
    "tiny",
    "empty",
    "transposed",
    "buffers",
)


def models(**fixed: Any) -> st.SearchStrategy[Odd]:
    """Odd models: sizes around the chunk grid and fewer elements than ranks, any mixture of peculiarities."""
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "width": st.sampled_from([1, 3, 5, 8, 16, 33]),
        "hidden": st.lists(st.sampled_from([1, 2, 7, 16, 40]), min_size=1, max_size=3).map(tuple),
        "activation": st.sampled_from(["relu", "tanh", "gelu"]),
        "norm": st.booleans(),
        **dict.fromkeys(PECULIAR, _seldom),
        "dropout": st.sampled_from([0.0, 0.0, 0.25]),
        "recompute": st.sampled_from(["none", "none", "reentrant", "non_reentrant"]),
    }
    return st.builds(Odd, **(drawn | _strategies(fixed)))


def optimizers(**fixed: Any) -> st.SearchStrategy[Optimizer]:
    """SGD is drawn most: the other optimizers hardly notice if a gradient is wrong by a constant factor."""
    drawn = {
        "name": st.sampled_from(["adam", "adamw", "sgd", "sgd", "sgd", "lion", "adagrad"]),
        "lr": st.sampled_from([1e-3, 1e-2]),
        "weight_decay": st.sampled_from([0.0, 0.1]),
        "momentum": st.sampled_from([0.0, 0.9]),
        "second_group": st.booleans(),
    }
    return st.builds(Optimizer, **(drawn | _strategies(fixed)))


#: The settings that must not change a bit: sizes from one chunk to more than the model.
SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "reduce_bucket": st.sampled_from([1, 100, 1000, 500_000_000]),
    "allgather_bucket": st.sampled_from([1, 100, 1000, 500_000_000]),
    "prefetch_bucket": st.sampled_from([0, 100, 1000, 50_000_000]),
    "persistence": st.sampled_from([0, 8, 50, 100_000]),
    "max_live": st.sampled_from([0, 300, 1_000_000_000]),
    "sub_group": st.sampled_from([17, 100, 100, 1_000_000_000]),
    "overlap": st.booleans(),
    "offload_optimizer": st.sampled_from(["none", "none", "cpu", "nvme"]),
    "offload_param": st.sampled_from(["none", "none", "cpu", "nvme"]),
    "offload_ratio": st.sampled_from([1.0, 1.0, 0.5]),
    "buffer_size": st.sampled_from([4096, 10_000]),
    "pipeline_read": st.booleans(),
    "pipeline_write": st.booleans(),
    "max_in_cpu": st.sampled_from([0, 0, 200]),
}


def scenarios(**fixed: Any) -> st.SearchStrategy[Scenario]:
    """Scenarios an engine must get right; ``fixed`` holds values or strategies for some fields."""
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "model": models(),
        "world": WORLDS,
        "stage": STAGES,
        "dtype": DTYPES,
        "steps": st.sampled_from([2, 2, 3]),
        "micro_batch": st.integers(1, 3),
        "accumulation": st.sampled_from([1, 1, 2, 3]),
        "clip": st.sampled_from([0.0, 0.05, 1.0]),
        "optimizer": optimizers(),
        "loss_scale": st.builds(LossScale, static=_scales),
        "communication_dtype": st.sampled_from([None, None, "fp32", "bf16"]),
        "accumulator_dtype": st.sampled_from([None, None, "bf16"]),
        "chunk": st.sampled_from([32, 64, 256, 1024]),
        "seed": st.integers(0, 1000),
        **SETTINGS,
    }
    return st.builds(Scenario, **(drawn | _strategies(fixed)))


def drawn(strategy: st.SearchStrategy[Any], share: float = 1.0) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test on ``share`` times the profile's number of examples, drawn as ``scenario``."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        examples = max(1, round(settings().max_examples * share))
        decorated = draw(test, strategy, settings(max_examples=examples))
        decorated.test, decorated.strategy = test, strategy  # type: ignore[attr-defined]  # for the meta suite
        return decorated

    return decorate


def _strategies(fixed: dict[str, Any]) -> dict[str, st.SearchStrategy[Any]]:
    return {k: v if isinstance(v, st.SearchStrategy) else st.just(v) for k, v in fixed.items()}


#: Piecewise linear and without a division: exact on dyadic data.
DYADIC_MODELS = models(activation="relu", loss="dot", norm=False, dropout=0.0, functional=False, buffers=False)
