"""Loops in which the caller begins the backward: ``loss.backward()`` in place of ``engine.backward(loss)``."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zerobench.suites.compat import loops


class _Recomputed(nn.Module):
    """A block whose forward runs again in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.block, x, use_reentrant=self.reentrant)


def _model(recompute: str) -> nn.Module:
    torch.manual_seed(0)
    middle = nn.Identity() if recompute == "none" else _Recomputed(recompute == "reentrant")
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), middle, nn.Linear(16, 3))


def trained(group: dist.ProcessGroup, stage: int, direct: bool, dtype: str, recompute: str) -> list[Tensor]:
    """Two epochs of the tutorial's loop; the masters after each step."""
    net, states = _model(recompute), []
    precisions: dict[str, Any] = {"fp16": {"enabled": True, "initial_scale_power": 8}, "bf16": {"enabled": True}}
    keys = loops.config(stage, **({} if dtype == "fp32" else {dtype: precisions[dtype]}))
    engine, _, loader, _ = loops.deepspeed().initialize(model=net, training_data=loops.data(), config=keys)
    for _ in range(2):
        for batch in loader:
            loss = loops.loss(engine, batch)
            if direct:
                engine.scale(loss).backward()
            else:
                engine.backward(loss)
            engine.step()
            if engine.was_step_applied():
                states.append(loops.masters(net))
    engine.destroy()
    return states


def cached(group: dist.ProcessGroup, stage: int, offload: bool, chunks: int) -> list[Tensor]:
    """The masters after steps of a loss that caches the gradients of its embeddings, as CachedMultipleNegativesRanking:
    a hook of the loss runs a forward and a backward for each chunk. No chunks: the loss itself.
    """
    net = _model("none")
    keys = loops.config(stage, train_batch_size=32, gradient_accumulation_steps=1)
    if offload:
        keys["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    engine, *_ = loops.deepspeed().initialize(model=net, config=keys)
    torch.manual_seed(1 + dist.get_rank())
    states = []

    def recomputed(parts: tuple[Tensor, ...], gradients: tuple[Tensor, ...], _: Tensor) -> None:
        with torch.enable_grad():
            for part, gradient in zip(parts, gradients, strict=True):
                (engine(part) * gradient).sum().backward()

    for x in torch.randn(3, 8, 5):
        if not chunks:
            loss = engine(x).logsumexp(0).square().mean()
        else:
            parts = x.chunk(chunks)
            with torch.no_grad():
                embeddings = torch.cat([engine(part) for part in parts]).requires_grad_()
            with torch.enable_grad():
                whole = embeddings.logsumexp(0).square().mean()
            [gradient] = torch.autograd.grad(whole, embeddings)
            loss = whole.detach().requires_grad_()
            hook = functools.partial(recomputed, parts, gradient.chunk(chunks))
            loss.register_hook(hook)  # type: ignore[no-untyped-call]
        engine.backward(loss)
        engine.step()
        states.append(loops.masters(net))
    engine.destroy()
    return states


def split(group: dist.ProcessGroup, stage: int, parts: int, runs: int | None = None, dtype: str = "fp32") -> Tensor:
    """A model in one engine or in two, three steps of one backward over all; the masters.

    Engine ``runs`` runs the backward, or the caller. The process has compiled something before.
    """
    torch.compile(torch.neg, backend="eager")(torch.ones(1))
    precision = {} if dtype == "fp32" else {dtype: {"enabled": True}}
    ds, keys = loops.deepspeed(), loops.config(stage, gradient_accumulation_steps=1, train_batch_size=8, **precision)
    net = loops.model()
    modules: list[nn.Module] = [net] if parts == 1 else [net[0], net[1:]]
    engines = [ds.initialize(model=each, config={**keys, "gradient_clipping": 0.0})[0] for each in modules]
    for _ in range(3):
        values = torch.ones(2, 5, dtype=torch.bfloat16 if dtype == "bf16" else None) * (1 + dist.get_rank())
        for engine in engines:
            values = engine(values)
        if runs is None:
            values.backward(torch.full_like(values, 0.5))  # type: ignore[no-untyped-call]
        else:
            engines[runs].backward(values.sum() * 0.5)
        for engine in engines:
            engine.step()
    after = loops.masters(net)
    for engine in engines:
        engine.destroy()
    return after


def penalised(group: dist.ProcessGroup, stage: int) -> int:
    """A gradient with respect to the input before each backward; the micro-steps that six batches make."""
    engine, _, loader, _ = loops.deepspeed().initialize(
        model=loops.model(), training_data=loops.data(), config=loops.config(stage)
    )
    for x, y in loader:
        x.requires_grad_()
        [slope] = torch.autograd.grad(engine(x).sum(), x, create_graph=stage < 3)
        (loops.loss(engine, (x, y)) + slope.detach().norm()).backward()
        engine.step()
    engine.destroy()
    return int(engine.micro_steps)


def balanced(group: dist.ProcessGroup, stage: int) -> list[Tensor]:
    """Two losses weighted by the norms of their gradients in the last layer, as VQGAN weighs its discriminator's.

    The weight of each step, that of a model without an engine for the first one, and the masters at the end.
    """
    net, plain, seen = loops.model(), loops.model(), []
    engine, _, loader, _ = loops.deepspeed().initialize(
        model=net, training_data=loops.data(), config=loops.config(stage)
    )
    for x, y in loader:
        losses = _losses(engine(x), y)
        seen.append(_balance(losses, net[-1].weight))
        if len(seen) == 1:
            seen.append(_balance(_losses(plain(x), y), plain[-1].weight))
        engine.backward(losses[0] + seen[-1] * losses[1])
        engine.step()
    seen.append(loops.masters(net))
    engine.destroy()
    return seen


def _losses(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return nn.functional.mse_loss(outputs, y), nn.functional.l1_loss(outputs, y)


def _balance(losses: tuple[Tensor, Tensor], weight: Any) -> Any:
    of_first, of_second = (torch.autograd.grad(each, weight, retain_graph=True)[0].norm() for each in losses)
    return of_first / of_second


@dataclass
class _Outputs:
    """Outputs as in diffusers, and as of transformers' models, which are mappings besides."""

    loss: Tensor
    others: tuple[Tensor, ...] = ()


class _WithOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = loops.model()

    def forward(self, x: Tensor, y: Tensor) -> _Outputs:
        return _Outputs(nn.functional.mse_loss(self.net(x), y))


def of_dataclass(group: dist.ProcessGroup, stage: int, direct: bool) -> Tensor:
    """The loss is a field of the outputs; the masters at the end."""
    net = _WithOutputs()
    engine, _, loader, _ = loops.deepspeed().initialize(
        model=net, training_data=loops.data(), config=loops.config(stage)
    )
    for x, y in loader:
        loss = engine(x, y).loss
        if direct:
            loss.backward()
        else:
            engine.backward(loss)
        engine.step()
    after = loops.masters(net)
    engine.destroy()
    return after


def interrupted(group: dist.ProcessGroup, stage: int, goes_on: bool) -> str:
    """An exception in a hook of the caller's ends the backward; the next forward's error, if there is one."""
    net = loops.model()
    engine, _, loader, _ = loops.deepspeed().initialize(
        model=net, training_data=loops.data(), config=loops.config(stage)
    )
    hidden: list[Tensor] = []
    net[1].register_forward_hook(lambda _, __, output: hidden.append(output))
    loss = loops.loss(engine, next(iter(loader)))

    def fail(_: Tensor) -> None:
        raise ArithmeticError("on purpose")

    hidden[-1].register_hook(fail)  # type: ignore[no-untyped-call]
    with pytest.raises(ArithmeticError):
        loss.backward()  # type: ignore[no-untyped-call]
    if not goes_on:
        engine.destroy()
        return ""
    with pytest.raises(RuntimeError) as caught:
        engine(torch.ones(2, 5))
    engine.destroy()
    return str(caught.value)


def unscaled(group: dist.ProcessGroup, stage: int) -> str:
    """fp16 without ``engine.scale``; the error."""
    engine, *_ = loops.deepspeed().initialize(model=loops.model(), config=loops.config(stage, fp16={"enabled": True}))
    with pytest.raises(RuntimeError) as caught:
        engine(torch.ones(2, 5, dtype=torch.float16)).float().sum().backward()
    engine.destroy()
    return str(caught.value)
