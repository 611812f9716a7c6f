"""Hypothesis strategies that draw Scenarios: every field over its boundary values and the ordinary ones."""

from __future__ import annotations

import typing
from collections.abc import Callable
from functools import update_wrapper, wraps
from inspect import Parameter, Signature, signature
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from zerobench.model_specs import Odd
from zerobench.scenario import LossScale, Optimizer, Read, Readable, Scenario
from zerobench.suites.support import covering
from zerobench.suites.support.covering import PECULIAR, among
from zerobench.suites.support.drawing import course, draw
from zerobench.suites.support.offered import fitted, offered_stages
from zerobench.suites.support.sizes import chunks, settings_of

WORLDS = among("world", 1, 2, 3, 4)
STAGES = among("stage", 0, 1, 2, 3)
_EACH_STAGE = [covering.fixed("stage", stage, *range(4)) for stage in range(4)]
DTYPES = among("dtype", "fp32", "bf16", "fp16")

#: Static loss scales that leave fp16's range alone on these models.
_scales = among("loss_scale", 16.0, 1.0, 256.0)


def _strategies(fixed: dict[str, Any]) -> dict[str, st.SearchStrategy[Any]]:
    return {k: v if isinstance(v, st.SearchStrategy) else st.just(v) for k, v in fixed.items()}


def models(**fixed: Any) -> st.SearchStrategy[Odd]:
    """Odd models: sizes around the chunk grid and fewer elements than ranks, any mixture of peculiarities."""
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "width": among("width", 5, 1, 3, 8, 16, 33, 100),
        "hidden": st.lists(st.sampled_from([1, 2, 7, 16, 40, 150]), min_size=1, max_size=3).map(tuple),
        "activation": among("activation", "relu", "tanh", "gelu"),
        "norm": among("norm", False, True),
        # rare: if a peculiarity is on in every model, it hides others that only show without it
        **{name: among(name, False, True, rare=True) for name in PECULIAR},
        "dropout": among("dropout", 0.0, 0.25, rare=True),
        "recompute": among("recompute", "none", "reentrant", "non_reentrant"),
    }
    return st.builds(Odd, **(drawn | _strategies(fixed)))


def optimizers(**fixed: Any) -> st.SearchStrategy[Optimizer]:
    """Optimizers with boundary values of every hyperparameter."""
    drawn = {
        "name": among("optimizer", "sgd", "adam", "adamw", "lion", "adagrad"),
        "lr": among("lr", 1e-2, 1e-3, 0.1),
        "betas": among("betas", (0.9, 0.999), (0.5, 0.75), (0.0, 0.0), (0.95, 0.5)),
        "eps": among("eps", 1e-8, 1e-3, 1.0),
        "weight_decay": among("weight_decay", 0.0, 0.1),
        "momentum": among("momentum", 0.9, 0.0, 0.5),
        "lr_decay": among("lr_decay", 0.0, 0.5),
        "second_group": among("second_group", False, True),
        "third_group": among("third_group", False, True, rare=True),
    }
    return st.builds(Optimizer, **(drawn | _strategies(fixed)))


#: The dynamic loss scale's five settings, so that a few steps meet every transition.
DYNAMIC = st.builds(
    LossScale,
    initial_power=st.sampled_from([8, 0, 3, 14, 18]),
    window=among("window", 1, 2, 3),
    hysteresis=among("hysteresis", 1, 2, 3),
    consecutive_hysteresis=among("consecutive_hysteresis", False, True),
    minimum=st.sampled_from([1.0, 0.25, 2.0, 256.0]),
)
STATIC = st.builds(LossScale, static=_scales)


@st.composite
def poisons(draw: st.DrawFn, steps: int, leaves: int) -> tuple[tuple[int, int], ...]:
    """No bad step, one, or several in a row; each on any leaf, and mostly followed by a good one."""
    first = draw(st.integers(0, steps - 1))
    row = draw(among("bad_steps", 0, 1, 2, rare=True))
    return tuple((step, draw(st.integers(0, leaves - 1))) for step in range(first, min(first + row, steps)))


def skipping(scenario: Scenario, step: int, leaf: int) -> Scenario:
    """The Scenario in which a bad leaf alone decides about ``step``: it is skipped, and the client changes nothing."""
    edits = tuple(each for each in scenario.edits if each != step)
    return scenario.but(poison=((step, leaf % scenario.leaves_of(step)),), edits=edits)


@st.composite
def zeroed(draw: st.DrawFn, steps: int, leaves: int) -> tuple[tuple[int, int], ...]:
    """No leaf without a gradient, one, or every leaf of a step, whose norm is then zero."""
    step, leaf = draw(st.integers(0, steps - 1)), draw(st.integers(0, leaves - 1))
    which = draw(among("zeroed", "none", "leaf", "step", rare=True))
    chosen = {"none": (), "leaf": (leaf,), "step": range(leaves)}[which]
    return tuple((step, each) for each in chosen)


@st.composite
def reads(draw: st.DrawFn, steps: int, accumulation: int) -> tuple[Read, ...]:
    """None, one, or several readings at any moment; of the first one, what and when are covered."""
    number = draw(among("reads", 0, 1, 3))
    first = _read(steps, accumulation, among("read", *_READABLE), among("read_at", -1, 0, 1))
    later = _read(steps, accumulation, st.sampled_from(_READABLE), st.integers(-1, accumulation))
    return tuple(draw(later if index else first) for index in range(number))


_READABLE: tuple[Readable, ...] = typing.get_args(Readable)


@st.composite
def _read(
    draw: st.DrawFn, steps: int, accumulation: int, kinds: st.SearchStrategy[Readable], moments: st.SearchStrategy[int]
) -> Read:
    what, at = draw(kinds), draw(moments)
    step, times = draw(st.integers(0, steps - 1)), draw(st.sampled_from([1, 1, 2]))
    return Read(what, step, accumulation if what == "gradients" else at, times)


@st.composite
def after_loads(draw: st.DrawFn, resumes: tuple[int, ...]) -> tuple[Read, ...]:
    """After each load readings before anything is trained, or none. Most of these have an evaluation: whatever an
    engine keeps whole or has computed before the load may show in it, first of all or after another reading."""
    kinds = among("load reads", *_AFTER_LOADS)
    return tuple(Read(what, step, 0) for step in resumes for what in draw(kinds))


_AFTER_LOADS: tuple[tuple[Readable, ...], ...] = (
    ("evaluation",),
    ("optimizer_state", "evaluation"),
    (),
    ("model_parameters", "evaluation"),
    ("parameters",),
)


@st.composite
def scenarios(draw: st.DrawFn, /, **fixed: Any) -> Scenario:
    """A Scenario that an engine must get right; ``fixed`` holds values or strategies for some fields."""
    given_fields = _strategies(fixed)
    chosen = {name: draw(given_fields.get(name, strategy)) for name, strategy in _FREE.items()}
    world, model = chosen["world"], chosen["model"]
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "chunk": chunks(model),
        "zeroed": zeroed(chosen["steps"], world * chosen["accumulation"]),
        "poison": poisons(chosen["steps"], world * chosen["accumulation"]),
        "reads": reads(chosen["steps"], chosen["accumulation"]),
    }
    chosen |= {name: draw(given_fields.get(name, strategy)) for name, strategy in drawn.items()}
    if chosen["poison"] and "poison_by" not in given_fields:
        chosen["poison_by"] = draw(among("poison_by", "inf", "nan"))
    if chosen["lr_factors"]:
        chosen["scheduled_by"] = draw(among("scheduled_by", "engine", "client"))
    if chosen["weight_decay_factors"]:
        chosen["eps_factors"] = (2.0**20, 0.25)  # up so far that each update is another
    chosen |= draw(settings_of(model, world, chosen["chunk"]))
    if chosen["dtype"] == "fp32":
        chosen["autocast"] = draw(among("autocast", False, True, rare=True))
    rest = {name: draw(given_fields[name]) for name in given_fields if name not in (*_FREE, *drawn)}
    if "resumes" in rest and "reads" not in given_fields:
        chosen["reads"] += draw(after_loads(rest["resumes"]))
    return fitted(Scenario(**{"device": covering.DEVICE} | chosen | rest))


#: The fields that depend on no other.
_FREE: dict[str, st.SearchStrategy[Any]] = {
    "stage": STAGES,
    "world": WORLDS,
    "dtype": DTYPES,
    "accumulation": among("accumulation", 1, 2, 3),
    "model": models(),
    "steps": st.sampled_from([*[2] * 8, *[3] * 4, 5]),
    "micro_batch": among("micro_batch", 2, 1, 3),
    "ragged": among("ragged", False, True, rare=True),
    "forwards": among("forwards", "one", "two", "dropped", "no_grad", rare=True),
    "short_steps": among("short_steps", (), ((0, 2),), ((1, 1),), rare=True),
    "gradient_edits": among("gradient_edits", (), (0, 1), rare=True),
    "edits": among("edits", (), (0,), (1,), rare=True),
    "frozen_steps": among("frozen_steps", (), (0,), (1,), rare=True),
    "ranks_differ": among("ranks_differ", False, True, rare=True),
    "clip": among("clip", 0.0, 0.05, 8.0),  # the last one is below some norms and above others
    "optimizer": optimizers(),
    "loss_scale": STATIC | DYNAMIC,
    "communication_dtype": among("communication_dtype", None, "fp32", "bf16", "fp16", rare=True),
    "accumulator_dtype": among("accumulator_dtype", None, "bf16", "fp16", rare=True),
    "schedule": among("schedule", "auto", "micro_step", rare=True),
    # from zero up and down, in the second step to the rate of the second group; one that stays, after a resume too
    "lr_factors": among("lr_factors", (), (0.0, 2.0, 1.0), (0.25,), rare=True),
    "weight_decay_factors": among("weight_decay_factors", (), (0.0, 2.0), (0.5,), rare=True),
    # a momentum of zero uses no buffer, and leaves it for the steps that follow
    "momentum_factors": among("momentum_factors", (), (0.5, 0.0, 1.0), (0.25,), rare=True),
    "seed": st.integers(0, 1000),
}

#: A schedule of the rate in half of the runs, for properties of what it depends on.
OFTEN_SCHEDULED = among("lr_factors", (), (0.25, 2.0, 0.5))

#: Each step has all micro-steps, each of these one forward, and the same parameters train in all steps, as the closed
#: forms of bytes have it.
USUAL_STEPS: dict[str, Any] = {
    "short_steps": (),
    "forwards": "one",
    "edits": (),
    "gradient_edits": (),
    "frozen_steps": (),
}

#: Undisturbed training: no step overflows, so every step is applied, and there are no readings.
UNDISTURBED: dict[str, Any] = {
    "poison": (),
    "reads": (),
    "lr_factors": (),
    "weight_decay_factors": (),
    "momentum_factors": (),
    "loss_scale": LossScale(static=1.0),
    "optimizer": optimizers(lr=1e-3),
}


#: The optimizer steps all parameters with the same hyperparameters.
ONE_GROUP: dict[str, Any] = {"second_group": False, "third_group": False}


Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def drawn(
    strategy: st.SearchStrategy[Any],
    share: float = 1.0,
    *,
    of_bits: float | None = None,
    of_others: float | None = None,
    of_one_stage: float | None = None,
    least: float = 0.0,
    label: str = "",
) -> Decorator:
    """Run a test on ``share`` times the profile's number of examples, drawn as ``scenario``.

    ``of_bits`` is the share for an engine that promises bits, if stronger properties hold that engine to more.
    ``of_others`` is the share for all engines but the reference engine, which CI examines with other seeds every day.
    ``of_one_stage`` is the share for an engine without a promise of bits that offers one stage alone.
    If fewer than the share ``least`` of the examples run to the end, the test skips as "not enough". ``label`` tells
    several draws of one test apart.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def counted(*args: Any, **kwargs: Any) -> None:
            test(*args, **kwargs)
            if not course().changed:
                covering.count_row()

        backend = covering.backend(f"{test.__module__}.{test.__qualname__}{label}")
        decorated: Any = _with_examples(counted, strategy, backend, share, least)
        shares = (of_bits, _promises_bits), (of_others, _is_no_reference), (of_one_stage, has_one_stage)
        for other, chosen in shares:
            if other is not None:
                decorated = _by_engine(decorated, _with_examples(counted, strategy, backend, other, least), chosen)
        decorated.test, decorated.strategy = counted, strategy  # for the meta suite, which runs it on other engines
        decorated.share, decorated.of_one_stage, decorated.backend = share, of_one_stage, backend
        return decorated  # type: ignore[no-any-return]

    return decorate


def _with_examples(
    test: Callable[..., None], strategy: st.SearchStrategy[Any], backend: str, share: float, least: float
) -> Callable[..., None]:
    examples = max(1, round(settings().max_examples * share))
    return draw(test, strategy, settings(max_examples=examples, backend=backend), max(1, round(examples * least)))


def _by_engine(
    of_any: Callable[..., None], of_chosen: Callable[..., None], is_chosen: Callable[[Any], bool]
) -> Callable[..., None]:
    """One of two tests, by the engine under test."""

    @wraps(of_any)
    def chosen(**engine: Any) -> None:
        [trials] = engine.values()
        (of_chosen if is_chosen(trials) else of_any)(**engine)

    return chosen


def _promises_bits(trials: Any) -> bool:
    return bool(trials.subject.promises_bits)


def _is_no_reference(trials: Any) -> bool:
    return bool(trials.name != "reference")


def has_one_stage(trials: Any) -> bool:
    """Whether an engine without a promise of bits offers one stage alone, so that a property of each stage has a
    quarter of the draws for it."""
    return not trials.subject.promises_bits and len(offered_stages(trials.subject)) == 1


def drawn_at_each_stage(
    strategy: Callable[[st.SearchStrategy[int]], st.SearchStrategy[Any]],
    share: float = 1.0,
    *,
    of_bits: float | None = None,
    of_others: float | None = None,
    least: float = 0.5,
) -> Decorator:
    """Make a test of each stage, with draws of its own: a failure at one stage hides nothing at another.

    ``strategy`` takes that of the stage. ``share`` and the other arguments are those of each test; see :func:`drawn`.
    An engine of one stage has twice the draws.
    """
    shares: dict[str, Any] = {
        "of_bits": of_bits,
        "of_others": of_others,
        "of_one_stage": 2 * (share if of_others is None else of_others),
    }

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        by_stage: list[Any] = [
            drawn(strategy(at), share, **shares, least=least, label=f"[{stage}]")(test)
            for stage, at in enumerate(_EACH_STAGE)
        ]

        def at_stage(stage: int, **engine: Any) -> None:
            by_stage[stage](**engine)

        decorated: Any = update_wrapper(at_stage, test)
        del decorated.__wrapped__  # pytest would take the fixtures of the test
        decorated.__signature__ = _of_stage(test)
        # for the meta suite: the tests, and one of all stages
        decorated.by_stage, decorated.test = by_stage, by_stage[0].test
        decorated.strategy, decorated.share, decorated.of_one_stage = strategy(STAGES), 4 * share, None
        decorated.backend = covering.backend(f"{test.__module__}.{test.__qualname__}")
        return pytest.mark.parametrize("stage", range(4))(decorated)  # type: ignore[no-any-return]

    return decorate


def _of_stage(test: Callable[..., None]) -> Signature:
    """The signature of a test of one stage: the fixture of the engine under test, and the stage."""
    engine = next(iter(signature(test).parameters))
    return Signature([Parameter(name, Parameter.KEYWORD_ONLY) for name in (engine, "stage")])


#: A forward uses each parameter once, so that a leaf's gradient is one term of a sum.
USED_ONCE: dict[str, Any] = dict.fromkeys(["tied", "reused", "tied_blocks", "part_alone", "listed_twice"], False)
#: Piecewise linear and without a division: exact on dyadic data.
_EXACT: dict[str, Any] = {
    "activation": "relu",
    "loss": "dot",
    "norm": False,
    "dropout": 0.0,
    "functional": False,
    "buffers": False,
}
DYADIC_MODELS = models(**_EXACT)
#: So few products that fp16 does not overflow, and that a second step is often exact.
SMALL_DYADIC: dict[str, Any] = _EXACT | {
    "width": among("width", 5, 1, 3, 8),
    "hidden": st.sampled_from([(1,), (2,), (7,)]),
    "frozen": False,
}
