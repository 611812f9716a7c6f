"""Facts of a Scenario, which predicates of known findings name, agree with the oracles' runs of it."""

from __future__ import annotations

import itertools
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerobench.findings import facts
from zerobench.model_specs import Odd
from zerobench.oracles.canonical_trainer import canonical
from zerobench.oracles.scaler import scaler_of
from zerobench.scenario import Dtype, Loads, LossScale, Optimizer, Scaler, Scenario
from zerobench.workload.models import shapes


@pytest.mark.parametrize("machine", ["deepspeed", "torch"])
@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("bad", list(itertools.product([False, True], repeat=4)))
def test_a_scale_that_may_grow(machine: Scaler, window: int, bad: tuple[bool, ...]) -> None:
    """The scale grows if the state machine says so."""
    spec = LossScale(scaler=machine, initial_power=10, window=window, hysteresis=1)
    poison = tuple((step, 0) for step, is_bad in enumerate(bad) if is_bad)
    scenario = Scenario(dtype="fp16", steps=len(bad), loss_scale=spec, poison=poison)
    scaler, scales = scaler_of(spec), [2.0**10]
    for is_bad in bad:
        scaler.update(is_bad)
        scales.append(scaler.scale)
    assert facts.raises_scale(scenario) == any(later > before for before, later in itertools.pairwise(scales))
    assert not facts.raises_scale(scenario.but(dtype="bf16"))
    assert not facts.raises_scale(scenario.but(loss_scale=LossScale(static=16.0, window=window)))


_FEW = st.sampled_from([(), (0,), (1,), (0, 1)])
_MODELS = st.builds(
    Odd,
    hidden=st.just((3, 4)),
    routed=st.booleans(),
    stopped=st.booleans(),
    reused=st.booleans(),
    routes=st.sampled_from(["steps", "micro_steps", "ranks"]),
)
_HISTORIES = st.builds(
    Scenario,
    model=_MODELS,
    world=st.sampled_from([1, 2]),
    accumulation=st.sampled_from([1, 2]),
    short_steps=st.sampled_from([(), ((0, 1),), ((1, 1),)]),
    frozen_steps=_FEW,
    poison=_FEW.map(lambda steps: tuple((step, 0) for step in steps)),
    dtype=st.just("fp16"),
    loss_scale=st.just(LossScale(static=16.0)),
    resumes=st.sampled_from([(1,), (2,), (1, 2)]),
)


@given(_HISTORIES)
def test_a_load_before_a_gradient(scenario: Scenario) -> None:
    """The canonical trainer had no gradient of a block in the steps that it applied, though it applied one."""
    steps = canonical(scenario.but(resumes=()), keep=frozenset({"gradients"})).steps
    trained = frozenset().union(*(step.gradients for step in steps))
    assert facts.resumed_before_gradient(scenario) == any(
        _lacks_one(scenario, resume, [step.gradients for step in steps], trained) for resume in scenario.resumes
    )


@given(_HISTORIES)
def test_a_late_first_gradient(scenario: Scenario) -> None:
    """A parameter's first gradient in the steps that the canonical trainer applied was not in the first of them."""
    scenario = scenario.but(resumes=())
    steps = canonical(scenario, keep=frozenset({"gradients"})).steps
    applied = [set(each.gradients) for step, each in enumerate(steps) if step not in scenario.bad_steps]
    assert facts.late_first_gradient(scenario) == bool(applied and set().union(*applied) - applied[0])
    assert facts.late_thaw(scenario.but(model=Odd())) == facts.late_first_gradient(scenario.but(model=Odd()))


@given(_HISTORIES)
def test_a_block_that_rests_after_its_use(scenario: Scenario) -> None:
    """A step that the canonical trainer applied had no gradient of a parameter that had one in a step before."""
    scenario = scenario.but(resumes=(), frozen_steps=())
    names = [set(step.gradients) for step in canonical(scenario, keep=frozenset({"gradients"})).steps]
    rests = (bool(set().union(*names[:step]) - now) for step, now in enumerate(names) if step not in scenario.bad_steps)
    assert facts.rests_after_use(scenario) == any(rests)


@pytest.mark.parametrize(("power", "high"), [(8, False), (14, True), (18, True)])
def test_a_scale_that_begins_high(power: int, high: bool) -> None:
    """The first steps may overflow, whatever the bad leaves are, so that a load comes before the first update."""
    scenario = Scenario(dtype="fp16", loss_scale=LossScale(initial_power=power), resumes=(2,))
    for fact in (facts.resumed_unstepped, facts.resumed_before_gradient, facts.skips_before_update):
        assert fact(scenario) == high
        assert not fact(scenario.but(dtype="bf16"))
    assert not facts.resumed_unstepped(scenario.but(resumes=()))


@pytest.mark.parametrize(
    ("dtype", "scale", "name", "has_scaler"),
    [
        ("fp16", LossScale(static=8.0), "", False),
        ("fp16", LossScale(static=8.0), "GradScaler", True),
        ("fp16", LossScale(static=8.0), "GradScaler.step without unscale_", True),
        ("fp16", LossScale(scaler="torch"), "", True),
        ("fp16", LossScale(), "", False),
        ("bf16", LossScale(scaler="torch"), "", False),
    ],
)
def test_a_grad_scaler(dtype: Dtype, scale: LossScale, name: str, has_scaler: bool) -> None:
    """It calls a fused optimizer in the steps that it leaves out, too."""
    settings = (name,) if name else ()
    scenario = Scenario(dtype=dtype, loss_scale=scale, settings=settings, frozen_steps=(0,), poison=((0, 0),))
    assert not facts.late_first_gradient(scenario)
    assert facts.late_first_call(scenario) == has_scaler
    assert facts.unscales(scenario) == (has_scaler and name != "GradScaler.step without unscale_")


@pytest.mark.parametrize("loads", ["all", "without_optimizer"])
@pytest.mark.parametrize("bad", list(itertools.product([False, True], repeat=4)))
def test_a_skip_before_an_update(bad: tuple[bool, ...], loads: Loads) -> None:
    """An optimizer has states once it has applied a step; a new one that does not load them has none."""
    poison = tuple((step, 0) for step, is_bad in enumerate(bad) if is_bad)
    static = LossScale(static=1.0)
    scenario = Scenario(dtype="fp16", steps=4, loss_scale=static, poison=poison, resumes=(2,), loads=loads)
    assert facts.skips_before_update(scenario) == (bad[0] or (loads != "all" and bad[2]))


@pytest.mark.parametrize(
    ("factors", "resume", "bad", "one_group", "two_groups"),
    [
        ((0.5, 0.0, 1.0), 1, (), False, True),  # the second group is a step ahead
        ((0.5, 0.0, 1.0), 2, (), False, False),
        ((0.5, 0.0, 0.0), 2, (0,), True, True),  # the first step is skipped
        ((0.0, 0.5), 1, (), True, True),
        ((0.0, 0.5), 1, (0,), False, False),  # no update at all
        ((0.25,), 1, (), False, False),
        ((), 1, (), False, False),
    ],
)
def test_a_load_before_a_momentum(
    factors: tuple[float, ...], resume: int, bad: tuple[int, ...], one_group: bool, two_groups: bool
) -> None:
    """A group has no buffer if its momentum was zero in each step that was applied."""
    poison = tuple((step, 0) for step in bad)
    scenario = Scenario(momentum_factors=factors, resumes=(resume,), poison=poison)
    assert facts.resumed_without_momentum(scenario) == one_group
    assert facts.resumed_without_momentum(scenario.but(optimizer=Optimizer(second_group=True))) == two_groups


@pytest.mark.parametrize(
    ("factors", "resume", "one_group", "two_groups"),
    [
        ((0.5, 0.0, 1.0), 1, True, True),
        ((1.0, 0.5, 0.0), 1, False, True),  # the second group is a step ahead
        ((1.0, 0.5, 0.0), 2, True, True),
        ((0.0, 0.0, 1.0), 1, False, False),  # the saved state has no buffer either
        ((), 1, False, False),
    ],
)
def test_a_stray_step_without_a_momentum(
    factors: tuple[float, ...], resume: int, one_group: bool, two_groups: bool
) -> None:
    """It is the one that an engine makes before it loads."""
    scenario = Scenario(momentum_factors=factors, resumes=(resume,), loads_into="trained")
    assert facts.strays_without_momentum(scenario) == one_group
    assert facts.strays_without_momentum(scenario.but(optimizer=Optimizer(second_group=True))) == two_groups
    assert not facts.strays_without_momentum(scenario.but(loads_into="new"))


@pytest.mark.parametrize(
    ("factors", "resumes", "one_group", "two_groups"),
    [
        ((0.5, 0.0, 1.0), (), False, True),  # the second group has none in the first step
        ((0.0, 0.5), (), False, True),
        ((0.25,), (), False, False),
        ((), (), False, False),
        ((0.5, 0.5, 0.0), (2,), False, False),  # from then on neither group has one
        ((0.5, 0.5, 0.5, 0.0), (2,), False, True),
    ],
)
def test_a_momentum_of_some_groups(
    factors: tuple[float, ...], resumes: tuple[int, ...], one_group: bool, two_groups: bool
) -> None:
    """An optimizer that begins anew has no buffers; the second group is a step ahead."""
    scenario = Scenario(momentum_factors=factors, resumes=resumes, loads="model")
    assert facts.momentum_in_part(scenario) == one_group
    assert facts.momentum_in_part(scenario.but(optimizer=Optimizer(second_group=True))) == two_groups


@pytest.mark.parametrize(
    ("factors", "frozen", "expected"),
    [
        ((0.5, 0.0), (0,), True),
        ((0.5, 0.0), (), False),
        ((0.5,), (0,), False),
        ((0.0, 0.5, 0.0), (1,), True),
        ((0.5, 0.0), (0, 1, 2), False),
    ],
)
def test_a_block_that_trains_without_a_momentum(
    factors: tuple[float, ...], frozen: tuple[int, ...], expected: bool
) -> None:
    """The other parameters had a momentum while it was frozen."""
    scenario = Scenario(momentum_factors=factors, frozen_steps=frozen)
    assert facts.thaws_without_momentum(scenario) == expected


def test_a_reduction_in_another_dtype() -> None:
    """Without a dtype of its own the reduction has that of the parameters."""
    scenarios = [Scenario(dtype="bf16", communication_dtype=dtype) for dtype in (None, "bf16", "fp32", "fp16")]
    assert [facts.reduces_in_another_dtype(each) for each in scenarios] == [False, False, True, True]


def _lacks_one(scenario: Scenario, resume: int, gradients: list[Collection[str]], trained: frozenset[str]) -> bool:
    applied = [names for step, names in enumerate(gradients[:resume]) if step not in scenario.bad_steps]
    return bool(applied) and bool(trained.difference(*applied))


@pytest.mark.parametrize(("persistence", "shards"), [(5, True), (9, False)])
def test_a_block_that_is_sharded(persistence: int, shards: bool) -> None:
    """The larger block's matrices have 9 elements; they stay whole if that is not above the threshold."""
    scenario = Scenario(model=Odd(width=3, hidden=(1, 3)), stage=3, persistence=persistence)
    assert facts.shards_a_block(scenario) == shards


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "model", [Odd(), Odd(width=8, hidden=(4, 12)), Odd(width=6, hidden=(3,)), Odd(width=4, hidden=(4,), scalar=True)]
)
def test_a_parameter_that_ranks_cannot_share(model: Odd, world: int) -> None:
    """Its number of elements is no multiple of theirs."""
    scenario = Scenario(model=model, world=world)
    sizes = [p.numel() for p in shapes(scenario).parameters()]
    assert facts.shares_unevenly(scenario) == any(size % world for size in sizes)
