"""Every rule's step is its oracle's, bit for bit, for all floats and for all cuts of a tensor.

The oracles are torch.optim, with a square root that is rounded right, and Lion written from the paper.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zerobench.engine.ops.runs import one_run
from zerobench.engine.ops.update import AdamValues, SgdValues, adam_step, sgd_step
from zerobench.engine.rules import RULES, of_type
from zerobench.engine.rules.adagrad import AdagradValues
from zerobench.engine.rules.lion import LionValues
from zerobench.engine.rules.rule import Rule
from zerobench.oracles.lion import Lion
from zerobench.oracles.optimizer import ExactUpdate
from zerobench.suites.kernels.values import Source, assert_same, dtypes, lengths, sources

pytestmark = pytest.mark.ci

_STEPS = 4
_ONE = torch.ones(1)

fused = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"),
    reason="torch fuses multiply-adds only where the CPU can",
)

_decays = st.sampled_from([0.0, 0.1])
_rates = st.sampled_from([1e-3, 0.1])
_seeds = st.integers(0, 2**32)


def _gradients(seed: int) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(1001, generator=random) * 10.0 ** (step - 2) for step in range(_STEPS + 1)]


@fused
@given(_seeds, _rates, st.sampled_from([0.9, 0.5, 0.2, 0.0]), st.sampled_from([0.999, 0.9]), _decays, st.booleans())
def test_adam(seed: int, lr: float, beta1: float, beta2: float, weight_decay: float, decoupled: bool) -> None:
    start, *gradients = _gradients(seed)
    theirs, ours = torch.nn.Parameter(start.clone()), start.clone()
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = kind([theirs], lr=lr, betas=(beta1, beta2), weight_decay=weight_decay, foreach=False)
    exp_avg, exp_avg_sq = torch.zeros_like(start), torch.zeros_like(start)
    for step, gradient in enumerate(gradients, start=1):
        theirs.grad = gradient.clone()
        with ExactUpdate():
            optimizer.step()
        rule = AdamValues(lr, beta1, beta2, 1e-8, weight_decay, decoupled, step)
        adam_step(ours, gradient, exp_avg, exp_avg_sq, None, _ONE, one_run(len(ours), rule))
        assert_same(ours, theirs.detach(), f"parameter after step {step}")
    assert_same(exp_avg, optimizer.state[theirs]["exp_avg"], "exp_avg")
    assert_same(exp_avg_sq, optimizer.state[theirs]["exp_avg_sq"], "exp_avg_sq")


@fused
@given(_seeds, _rates, st.sampled_from([0.0, 0.9]), _decays)
def test_sgd(seed: int, lr: float, momentum: float, weight_decay: float) -> None:
    start, *gradients = _gradients(seed)
    theirs, ours = torch.nn.Parameter(start.clone()), start.clone()
    optimizer = torch.optim.SGD([theirs], lr=lr, momentum=momentum, weight_decay=weight_decay, foreach=False)
    buffer = torch.zeros_like(start) if momentum else None
    for step, gradient in enumerate(gradients, start=1):
        theirs.grad = gradient.clone()
        optimizer.step()
        sgd_step(ours, gradient, buffer, None, _ONE, one_run(len(ours), SgdValues(lr, momentum, weight_decay)))
        assert_same(ours, theirs.detach(), f"parameter after step {step}")


def _oracles_step(
    make: Any, master: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor], **arguments: Any
) -> torch.Tensor:
    """The new parameter; ``state`` is changed in place."""
    parameter = torch.nn.Parameter(master.clone())
    parameter.grad = gradient
    optimizer = make([parameter], **arguments)
    optimizer.state[parameter] = state
    with ExactUpdate():
        optimizer.step()
    return parameter.detach()


@given(sources, lengths, dtypes, st.sampled_from([(0.9, 0.99), (0.5, 0.2), (0.0, 0.0)]), _rates, _decays)
def test_lion(
    source: Source, n: int, dtype: torch.dtype, betas: tuple[float, float], lr: float, weight_decay: float
) -> None:
    """From any state, with any gradient: zeros, infinities, NaNs and subnormals among them."""
    master, gradient, exp_avg, factor = source(n), source(n, dtype=dtype), source(n), torch.tensor([0.25])
    theirs = {"exp_avg": exp_avg.clone()}
    scaled = gradient.float() * factor
    expected = _oracles_step(Lion, master, scaled, theirs, lr=lr, betas=betas, weight_decay=weight_decay)
    copy = torch.empty(n, dtype=dtype)
    of_type("Lion").update(master, gradient, [exp_avg], copy, factor, LionValues(lr, *betas, weight_decay))
    assert_same(exp_avg, theirs["exp_avg"], "exp_avg")
    assert_same(master, expected, "parameter")
    assert_same(copy, expected.to(dtype), "copy")


@fused
@given(sources, lengths, dtypes, st.sampled_from([0.0, 0.5]), st.sampled_from([1e-10, 0.0]), _rates, _decays)
def test_adagrad(
    source: Source, n: int, dtype: torch.dtype, lr_decay: float, eps: float, lr: float, weight_decay: float
) -> None:
    """The same, at the first step and a later one."""
    for step in (1, 7):
        master, gradient, total, factor = source(n), source(n, dtype=dtype), source(n), torch.tensor([0.25])
        theirs = {"sum": total.clone(), "step": torch.tensor(step - 1.0)}
        scaled = gradient.float() * factor
        arguments = {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay, "foreach": False}
        expected = _oracles_step(torch.optim.Adagrad, master, scaled, theirs, **arguments)
        copy = torch.empty(n, dtype=dtype)
        values = AdagradValues(lr, lr_decay, eps, weight_decay, step)
        of_type("Adagrad").update(master, gradient, [total], copy, factor, values)
        assert_same(total, theirs["sum"], "sum")
        assert_same(master, expected, "parameter")
        assert_same(copy, expected.to(dtype), "copy")


#: torch's optimizers that a rule of the same name follows, and hyperparameters besides the rate and the decay. With a
#: beta1 of 0 the sign of a zero depends on torch's cut of the tensor.
_OF_TORCH: list[tuple[str, dict[str, Any]]] = [
    ("RMSprop", {"centered": True, "momentum": 0.5, "alpha": 0.25, "eps": 1.0}),
    ("RAdam", {"betas": (0.2, 0.9), "decoupled_weight_decay": True}),
    ("NAdam", {"betas": (0.2, 0.5), "momentum_decay": 0.1, "decoupled_weight_decay": True}),
    ("Adamax", {"betas": (0.2, 0.5), "eps": 1e-3}),
    ("Adadelta", {"rho": 0.25, "eps": 1e-3}),
]
#: The same with other options.
_ALSO: list[tuple[str, dict[str, Any]]] = [
    ("RMSprop", {"alpha": 0.9}),
    ("RMSprop", {"momentum": 0.9, "eps": 1e-3}),
    ("RMSprop", {"centered": True, "eps": 1.0}),
    ("RAdam", {"betas": (0.9, 0.999)}),
    ("NAdam", {"betas": (0.9, 0.999)}),
    ("Adamax", {"betas": (0.9, 0.999), "eps": 1e-8}),
    ("Adadelta", {}),
]


@fused
@pytest.mark.parametrize(
    ("name", "options"),
    [pytest.param(*each, marks=[pytest.mark.rotating] if each in _ALSO else []) for each in [*_OF_TORCH, *_ALSO]],
)
@given(sources, lengths, dtypes, _rates, _decays)
def test_rules_of_torch(
    name: str, options: dict[str, Any], source: Source, n: int, dtype: torch.dtype, lr: float, weight_decay: float
) -> None:
    """From any master, with any gradients: six steps, so that RAdam's rectification begins."""
    rule = of_type(name)
    hyper = {"lr": lr, "weight_decay": weight_decay, **options}
    group = rule.defaults(rule.params(**hyper), name)
    names, factor = rule.state_names([group]), torch.tensor([0.25])
    master = source(n)
    theirs = torch.nn.Parameter(master.clone())
    states = [torch.zeros(n) for _ in names]
    optimizer = getattr(torch.optim, name)([theirs], **hyper, foreach=False)
    for step in range(1, 7):
        gradient, copy = source(n, dtype=dtype), torch.empty(n, dtype=dtype)
        theirs.grad = gradient.float() * factor
        with ExactUpdate():
            optimizer.step()
        rule.update(master, gradient, states, copy, factor, rule.values(group, step))
        for state, each in zip(names, states, strict=True):
            assert_same(each, optimizer.state[theirs][state], f"{state} after step {step}")
        assert_same(master, theirs.detach(), f"parameter after step {step}")
        assert_same(copy, theirs.detach().to(dtype), f"copy after step {step}")


@pytest.mark.parametrize("gradient", [0.0, -0.0, torch.nan])
def test_lion_goes_nowhere_without_a_direction(gradient: float) -> None:
    """The sign of either zero, and of NaN, is 0: only the decay moves the parameter."""
    master, exp_avg = torch.tensor([1.0, -1.0, 0.0, -0.0]), torch.zeros(4)
    of_type("Lion").update(master, torch.full((4,), gradient), [exp_avg], None, _ONE, LionValues(0.5, 0.9, 0.99, 0.5))
    assert_same(master, torch.tensor([0.75, -0.75, 0.0, -0.0]), "parameter")


def _group(rule: Rule[Any]) -> dict[str, Any]:
    """A group in which every term of the rule's formula counts."""
    wanted = {"weight_decay": 0.1, "momentum": 0.9, "lr_decay": 0.5}
    given = {name: value for name, value in wanted.items() if name in rule.params.model_fields}
    return rule.defaults(rule.params(**given), rule.types[0])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.types[0])
@given(sources, st.integers(2, 300), dtypes, st.data())
def test_cuts_change_nothing(rule: Rule[Any], source: Source, n: int, dtype: torch.dtype, data: st.DataObject) -> None:
    """If a tensor is cut anywhere, as shards, sub-groups and step counts cut it, the step has the same bits."""
    group = _group(rule)
    names = rule.state_names([group])
    tensors = [source(n), source(n, dtype=dtype), torch.empty(n, dtype=dtype), *(source(n) for _ in names)]
    pieces = [tensor.clone() for tensor in tensors]
    cuts = sorted(data.draw(st.sets(st.integers(1, n - 1), min_size=1, max_size=4)))
    _update(rule, group, tensors)
    for start, stop in zip([0, *cuts], [*cuts, n], strict=True):
        _update(rule, group, [tensor[start:stop] for tensor in pieces])
    for name, whole, cut in zip(["master", "gradient", "copy", *names], tensors, pieces, strict=True):
        assert_same(cut, whole, name)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.types[0])
@given(sources, lengths, dtypes)
def test_no_factor_no_update(rule: Rule[Any], source: Source, n: int, dtype: torch.dtype) -> None:
    """If the factor is NaN, the copy receives the master, and nothing else changes, whatever the gradient is."""
    group = _group(rule)
    master, *others = [source(n) for _ in (None, *rule.state_names([group]))]
    before = [tensor.clone() for tensor in (master, *others)]
    copy = torch.empty(n, dtype=dtype)
    _update(rule, group, [master, source(n, dtype=dtype), copy, *others], torch.nan)
    for name, after, expected in zip(["master", *rule.state_names([group])], [master, *others], before, strict=True):
        assert_same(after, expected, name)
    assert_same(copy, master.to(dtype), "copy")


def _update(rule: Rule[Any], group: dict[str, Any], tensors: list[torch.Tensor], factor: float = 0.25) -> None:
    master, gradient, copy, *states = tensors
    rule.update(master, gradient, states, copy, torch.tensor([factor]), rule.values(group, 3))


def test_roots_are_rounded_right() -> None:
    """ExactUpdate takes the nearest fp32 value to each root on every CPU; torch's own root may differ.

    A root is the nearest if the value lies between the squares of the middles to both neighbours, which fp64 holds
    exactly: 25 bits, squared.
    """
    values = torch.rand(10**5, generator=torch.Generator().manual_seed(0)).clamp(min=2.0**-100)
    with ExactUpdate():
        roots = values.sqrt()
    below, above = (torch.nextafter(roots, torch.tensor(end)).double() for end in (0.0, torch.inf))
    exact, middle = values.double(), roots.double()
    assert ((((below + middle) / 2) ** 2 < exact) & (exact < ((middle + above) / 2) ** 2)).all()
