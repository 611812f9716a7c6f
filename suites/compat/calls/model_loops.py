"""Loops over models that few scripts have: frozen, compiled, in 16 bits, of several engines; each on every rank."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.suites.compat import loops


def some_parameters(group: dist.ProcessGroup, stage: int, client: bool) -> list[bool]:
    """The parameters that two steps have changed, if only the last layer's are given."""
    ds, net = loops.deepspeed(), loops.model()
    before, given = loops.model(), list(net[2].parameters())
    left_out = ("scheduler", "optimizer") if client else ("scheduler",)
    keys = {key: value for key, value in loops.config(stage).items() if key not in left_out}
    optimizer = torch.optim.AdamW(given, lr=1e-2) if client else None
    engine, *_ = ds.initialize(
        model=net, optimizer=optimizer, model_parameters=given, training_data=loops.data(), config=keys
    )
    loops.trained(engine, net[2], 4)
    with ds.zero.GatheredParameters(list(net.parameters())):
        changed = [not torch.equal(p, old) for p, old in zip(net.parameters(), before.parameters(), strict=True)]
    engine.destroy()
    return changed


class _Heads(nn.Module):
    """A body and two heads, of which a forward uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = loops.model()  # it seeds the heads, too
        self.heads = nn.ModuleList(nn.Linear(3, 1) for _ in range(2))

    def forward(self, x: Tensor, task: int) -> Any:
        return self.heads[task](self.body(x))


def alternating_heads(group: dist.ProcessGroup, stage: int, explicit: bool) -> Tensor:
    """The masters after steps that use one of two heads each; the other one has no gradient, or one of zeros."""
    ds, net = loops.deepspeed(), _Heads()
    keys = loops.config(stage, gradient_accumulation_steps=1, train_batch_size=8)
    engine, *_ = ds.initialize(model=net, training_data=loops.data(), config=keys)
    for step, (x, _) in enumerate(itertools.islice(engine.training_dataloader, 4)):
        loss = engine(x, step % 2).square().mean()
        engine.backward(loss + 0 * net.heads[1 - step % 2](torch.zeros(1, 3)).sum() if explicit else loss)
        engine.step()
    after = loops.masters(net)
    engine.destroy()
    return after


def in_sixteen_bits(group: dist.ProcessGroup, stage: int, dtype: str) -> tuple[Tensor, torch.dtype]:
    """A model in 16 bits, with a configuration that does not say so; the masters and the dtype of its parameters."""
    ds, net = loops.deepspeed(), loops.model().to(getattr(torch, dtype))
    engine, *_ = ds.initialize(model=net, training_data=loops.data(), config=loops.config(stage))
    after = loops.trained(engine, net, len(engine.training_dataloader))
    engine.destroy()
    return after, next(net.parameters()).dtype


def compiled(group: dist.ProcessGroup, stage: int) -> Tensor:
    """A model that was given to torch.compile before."""
    net = loops.model()
    ds, model = loops.deepspeed(), torch.compile(net, backend="eager")
    engine, *_ = ds.initialize(model=model, training_data=loops.data(), config=loops.config(stage))
    after = loops.trained(engine, net, 4)
    engine.destroy()
    return after


class _Product(torch.autograd.Function):
    """A product written in Python, whose backward gathers the weight if it is not whole, as TRL's chunked losses do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        ds = loops.deepspeed()
        missing = [weight] if weight.ds_status != ds.zero.ZeroParamStatus.AVAILABLE else []
        with ds.zero.GatheredParameters(missing):
            return gradient @ weight, gradient.T @ x


class _Head(nn.Linear):
    def forward(self, input: Tensor) -> Any:  # noqa: A002  # the name of nn.Linear
        return _Product.apply(input, self.weight)  # type: ignore[no-untyped-call]


def in_python(group: dist.ProcessGroup, stage: int) -> Tensor:
    """Three steps of a model whose head is a function written in Python."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), _Head(16, 3, bias=False))
    keys = loops.config(stage, gradient_accumulation_steps=1, train_batch_size=8)
    engine, *_ = loops.deepspeed().initialize(model=net, training_data=loops.data(), config=keys)
    after = loops.trained(engine, net, 3)
    engine.destroy()
    return after


def weights_loaded(group: dist.ProcessGroup, stage: int, dtype: str) -> Tensor:
    """Weights loaded by the module's own load_state_dict between two steps; the masters."""
    keys = {dtype: {"enabled": True, "auto_cast": True} if dtype == "fp16" else {"enabled": True}}
    ds, engine, net = loops.begun(stage, **(keys if dtype != "fp32" else {}))
    whole = ds.zero.GatheredParameters(list(net.parameters()), enabled=stage == 3)
    loaded = {name: value / 2 for name, value in loops.model().state_dict().items()}
    x = torch.ones(2, 5, dtype=next(net.parameters()).dtype)
    for step in range(3):
        if step == 2:
            with whole:
                net.load_state_dict(loaded)
        engine.backward(engine(x).float().pow(2).mean())
        engine.step()
    after = loops.masters(net)
    engine.destroy()
    return after


def in_two_engines(group: dist.ProcessGroup, stage: int, destroys: bool) -> list[Tensor]:
    """An engine that evaluates, one that trains a part, and one that trains all of the same model; masters of each."""
    ds, net, results = loops.deepspeed(), loops.model(), list[Tensor]()
    keys = loops.config(stage, gradient_accumulation_steps=1, train_batch_size=8)
    without = {name: value for name, value in keys.items() if name != "optimizer"}
    earlier, *_ = ds.initialize(model=net, config=without)
    with torch.no_grad():
        results.append(earlier(torch.ones(2, 5)))
    for trained in (net[2], net):
        if destroys:
            earlier.destroy()
        net.requires_grad_(False)
        trained.requires_grad_(True)
        engine, *_ = ds.initialize(model=net, model_parameters=trained.parameters(), config=keys)
        for x in (torch.ones(2, 5), torch.eye(5)[:2]):
            engine.backward(engine(x).pow(2).mean())
            engine.step()
        if destroys or stage == 3:
            with pytest.raises(RuntimeError, match="this engine was destroyed"):
                earlier.step()
        earlier = engine
        results.append(torch.cat([loops.masters(net[2]), loops.masters(trained)]))
    earlier.destroy()
    return results


def in_two_models(group: dist.ProcessGroup, stage: int, frozen: bool) -> str:
    """The error of the first engine's backward after a second engine took a layer of its model that is not its first;
    empty if it trains on, because the layer is frozen."""
    ds, layer = loops.deepspeed(), nn.Linear(5, 5)
    layer.requires_grad_(not frozen)
    keys = loops.config(stage, gradient_accumulation_steps=1, train_batch_size=8)
    models = [nn.Sequential(nn.Linear(5, 5), layer, nn.Linear(5, 1)) for _ in range(2)]
    engines = [ds.initialize(model=each, model_parameters=each.parameters(), config=keys)[0] for each in models]
    said = ""
    for engine in reversed(engines):
        try:
            engine.backward(engine(torch.ones(2, 5)).pow(2).mean())
            engine.step()
        except RuntimeError as error:
            said += str(error)
    for engine in engines:
        engine.destroy()
    return said


def unfrozen(group: dist.ProcessGroup, stage: int) -> str:
    """The error of a step if a parameter trains that was given to initialize() frozen; its groups are as torch's."""
    ds, net = loops.deepspeed(), loops.model()
    net[0].requires_grad_(False)
    groups = [{"params": net[0].parameters()}, {"params": net[2].weight}, {"params": [net[2].bias], "lr": 0.5}]
    engine, *_ = ds.initialize(model=net, model_parameters=groups, config=loops.config(stage))
    for frozen in (True, False):
        net[0].requires_grad_(not frozen)
        engine.backward(engine(torch.ones(2, 5)).mean())
        if frozen:
            engine.step()
    with pytest.raises(RuntimeError) as caught:
        engine.step()
    engine.destroy()
    return str(caught.value)
