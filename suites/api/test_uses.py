"""Uses of sharded parameters, and of the engine, that zerobench's own models do not make: they change no bit either."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import zerobench
from zerobench.engine.stage3.hooks import _hooks_in_force
from zerobench.engine.state.copies import Copies, _OnStream
from zerobench.suites.support.trials import TIME_LIMIT, Trials

Make = Callable[[], nn.Module]


def _by_parameters(layers: nn.Sequential) -> Iterable[Tensor]:
    return layers.parameters()


def _by_values(layers: nn.Sequential) -> Iterable[Any]:
    return [parameter for layer in layers for parameter in layer._parameters.values()]


def _by_get(layers: nn.Sequential) -> Iterable[Any]:
    return [layer._parameters.get("weight") for layer in layers if isinstance(layer, nn.Linear)]


class _Penalized(nn.Module):
    """A penalty over the parameters that ``listed`` finds, after the layers have run."""

    def __init__(self, listed: Callable[[nn.Sequential], Iterable[Tensor]]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.listed = listed

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.layers(x).square().mean()
        return loss + torch.stack([parameter.square().sum() for parameter in self.listed(self.layers)]).sum()


class _Turned(nn.Module):
    """Autograd saves a real parameter as complex numbers, and negated."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.randn(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(self.layer(x).view(-1, 4, 2))
        turn = torch.view_as_complex(self.weight)
        return torch.view_as_real(pairs * turn).square().mean() + (pairs.real * turn.conj().imag).square().mean()


@dataclass
class _Found:
    """A parameter among a forward's outputs."""

    weight: Tensor


#: The outputs of a forward that returns its own parameter, and how the forward around it takes the parameter.
_RETURNS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "returned": (lambda weight: weight, lambda found: found),
    "returned in a dict": (lambda weight: {"all": [weight]}, lambda found: found["all"][0]),
    "returned in a dataclass": (_Found, lambda found: found.weight),
    "a part returned": (lambda weight: weight[:, :4], lambda found: found.repeat(1, 2)),
}


class _Own(nn.Module):
    """Returns its own parameter, as learned positions do."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.weight, self.form = nn.Parameter(torch.randn(3, 8)), form

    def forward(self) -> Any:
        return _RETURNS[self.form][0](self.weight)


class _Returned(nn.Module):
    """Uses a parameter that an inner forward has returned, after another one's."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.positions, self.layer = _Own(form), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        found = self.positions()
        loss: Tensor = (self.layer(x) + _RETURNS[self.positions.form][1](found)).square().mean()
        return loss


class _Kept(nn.Module):
    """Keeps parameters of its layers in a list, and uses them before and after the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.listed = list(self.layers.parameters())

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.layers(x * self.listed[0].detach().norm()).square().mean()
        return loss + torch.stack([each.norm() for each in self.listed]).sum() + (self.listed[2] @ self.listed[3]).sum()


class _Multiplied(torch.autograd.Function):
    """Keeps the parameter as an attribute of its context, where no saved-tensor hook sees it."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        context.x, context.weight = x, weight
        return x @ weight.t()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient @ context.weight, gradient.t() @ context.x


class _InContext(nn.Module):
    """A layer that multiplies by a function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = _Multiplied.apply(x, self.weight)  # type: ignore[no-untyped-call]
        return product


class _Functions(nn.Module):
    """Layers whose backwards need parameters that other layers' uses have resharded meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = _InContext(), _InContext(), _InContext()

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.last(self.second(self.first(x))).square().mean()
        return loss


USES: dict[str, Make] = {
    "parameters": partial(_Penalized, _by_parameters),
    "values": partial(_Penalized, _by_values),
    "get": partial(_Penalized, _by_get),
    "complex": _Turned,
    "kept in a list": _Kept,
    "kept in a context": _Functions,
    **{form: partial(_Returned, form) for form in _RETURNS},
}


@pytest.mark.parametrize("make", USES.values(), ids=USES)
def test_uses_are_noticed(reference: Trials, make: Make) -> None:
    """If a forward or its backward reads a sharded parameter, it reads the parameter's values."""
    whole, sharded = (reference.pool.run(_train, make, stage, world=2, timeout=TIME_LIMIT) for stage in (0, 3))
    _demand_same(sharded, whole)


def _train(group: dist.ProcessGroup, make: Make, stage: int) -> list[Tensor]:
    """One rank's part: parameters after two steps."""
    torch.manual_seed(0)
    model = make()
    config = _config(stage, train_batch_size=dist.get_world_size(group))
    engine, *_ = zerobench.initialize(model, config, process_group=group)
    torch.manual_seed(1 + dist.get_rank(group))
    for _ in range(2):
        engine.backward(engine(torch.randn(3, 8)))
        engine.step()
    trained = _parameters(model)
    engine.destroy()
    return trained


@pytest.mark.parametrize("stage", range(4))
def test_gradients_by_the_inputs(reference: Trials, stage: int) -> None:
    """Steps on samples that the client has moved along the signs of the loss's gradients by them, as in adversarial
    training, are those on samples that somebody else has moved so."""
    pool = reference.pool
    moved = pool.run(_train_on_moved, stage, None, world=2, timeout=TIME_LIMIT)
    given = [samples for samples, _ in moved]
    plain = pool.run(_train_on_moved, stage, given, world=2, timeout=TIME_LIMIT)
    _demand_same([trained for _, trained in moved], [trained for _, trained in plain])


def _train_on_moved(
    group: dist.ProcessGroup, stage: int, given: list[list[Tensor]] | None
) -> tuple[list[Tensor], list[Tensor]]:
    """One rank's part: the samples of three steps of two micro-steps, and the parameters after them; ``given`` has
    the samples of each rank if they have been moved."""
    torch.manual_seed(0)
    model, rank = _Kept(), dist.get_rank(group)
    config = _config(stage, train_batch_size=4) | {"train_micro_batch_size_per_gpu": 1}
    engine, *_ = zerobench.initialize(model, config, process_group=group)
    torch.manual_seed(1 + rank)
    samples = [torch.randn(1, 8) for _ in range(6)] if given is None else given[rank]
    for index, sample in enumerate(samples):
        if given is None:
            leaf = sample.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(engine(leaf), leaf)
            samples[index] = sample + 0.1 * gradient.sign()
        engine.backward(engine(samples[index]))
        engine.step()
    trained = _parameters(model)
    engine.destroy()
    return samples, trained


def test_a_group_without_cpus(reference: Trials) -> None:
    """If the backend carries no messages between CPUs, as NCCL alone, messages have a group of gloo, which ends with
    the engine; otherwise they have none."""
    runs = [reference.pool.run(_on_backend, backend, world=4, timeout=TIME_LIMIT) for backend in ("", "cuda:nccl")]
    assert [groups for groups, _ in runs[0]] == [[0, 0]] * 4
    assert [groups for groups, _ in runs[1]] == [[1, 0]] * 4
    _demand_same(*([parameters for _, parameters in run] for run in runs))


def test_a_part_of_all_ranks_makes_no_group(reference: Trials) -> None:
    """Making a group takes all ranks, also those outside it; the engine of some of the ranks makes none."""
    runs = reference.pool.run(_on_backend, "cuda:nccl", world=2, timeout=TIME_LIMIT)
    assert [groups for groups, _ in runs] == [[0, 0]] * 2


def _on_backend(group: dist.ProcessGroup, backend: str) -> tuple[list[int], list[Tensor]]:
    """One rank's part: the number of additional groups during training and after, and the parameters."""
    named = mock.patch.object(dist, "get_backend_config", return_value=backend) if backend else nullcontext()
    groups = dist.distributed_c10d._world.pg_map
    before = len(groups)
    more: list[int] = []

    def count(x: Tensor) -> Tensor:
        more.append(len(groups) - before)
        return x

    with named:
        parameters = _train(group, partial(_Called, count), 3)
    return [max(more), len(groups) - before], parameters


class _Called(nn.Module):
    """A function between two layers, and a parameter of the root's own."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), _Applied(function), nn.Linear(8, 8)])
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        first, applied, last = self.layers
        out: Tensor = last(checkpoint(applied, first(x), use_reentrant=True)) * self.scale
        return out.square().mean()


class _Applied(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


@pytest.mark.parametrize("call", [1, 2], ids=["forward", "recomputation"])
def test_an_interrupt_leaves_nothing_behind(call: int) -> None:
    """After a Ctrl-C in the middle of a pass autograd saves tensors as it did before."""
    calls = 0

    def interrupted(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return x

    engine, *_ = zerobench.initialize(_Called(interrupted), _config(3))
    with pytest.raises(KeyboardInterrupt):
        engine.backward(engine(torch.ones(1, 8)))
    assert _hooks_in_force() is None
    assert engine.hooks is not None
    assert not engine.hooks._scopes
    engine.destroy()


def test_after_an_interrupt_in_a_forward() -> None:
    """The engine continues as if that forward had not run, and holds no unit for it."""
    runs = []
    for interrupt in (False, True):
        armed = interrupt

        def interrupted(x: Tensor) -> Tensor:
            nonlocal armed
            if armed:
                armed = False
                raise KeyboardInterrupt
            return x

        torch.manual_seed(0)
        model = _Called(interrupted)
        engine, *_ = zerobench.initialize(model, _config(3))
        with pytest.raises(KeyboardInterrupt) if interrupt else nullcontext():
            engine(torch.ones(1, 8))
        for _ in range(2):
            engine.backward(engine(torch.ones(1, 8)))
            engine.step()
        assert not any(state.resident for state in engine.states)
        runs.append([_parameters(model)])
        engine.destroy()
    _demand_same(*runs)


def test_a_forward_whose_backward_never_comes() -> None:
    """The shards that it left on their way up from the host are those from before the step, and unused after it."""
    host = {"device": "cpu"}
    config = _config(3, offload_param=host, offload_optimizer=host, stage3_prefetch_bucket_size=2 * 64 * 64)
    runs = []
    for stray in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(5)))
        engine, *_ = zerobench.initialize(model, config)
        for _ in range(3):  # the first learns the order
            engine.backward(engine(torch.ones(1, 64)).square().mean())
            if stray:
                engine(torch.ones(1, 64))
            engine.step()
        runs.append([_parameters(model)])
        engine.destroy()
    _demand_same(*runs)


def test_a_copy_is_joined_on_its_own_device() -> None:
    """The engine's device's stream waits for a copy, whichever device is the current one."""
    copies, event = Copies(torch.device("cpu"), pin=False), mock.Mock()
    copies._down = mock.Mock(device=torch.device("cuda", 1))
    with mock.patch("torch.cuda.current_stream") as current:
        copies.join(_OnStream(event))
    current.assert_called_once_with(torch.device("cuda", 1))
    current.return_value.wait_event.assert_called_once_with(event)


def _config(stage: int, train_batch_size: int = 1, **zero: Any) -> dict[str, Any]:
    """Nothing stays whole longer than it is used."""
    small = {"chunk_size": 32, "stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 0}
    return {
        "train_batch_size": train_batch_size,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": stage, **small, **zero},
    }


def _parameters(model: nn.Module) -> list[Tensor]:
    """The whole parameters; a collective."""
    found = [zerobench.safe_get_full_fp32_param(parameter) for parameter in model.parameters()]
    return [parameter for parameter in found if parameter is not None]


def _demand_same(got: list[list[Tensor]], expected: list[list[Tensor]]) -> None:
    """The same bits on every rank."""
    for ours, theirs in zip(got, expected, strict=True):
        assert ours
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other)
