"""The end of a step: counted by the engine, declared by the caller, or at each ``step()``; and no step at all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import zerobench
from zerobench.ranks import Pool

pytestmark = pytest.mark.usefixtures("reference")

_STEPS = 3
_PLACES: list[tuple[int, str, dict[str, Any]]] = [
    (0, "auto", {}),
    (0, "micro_step", {}),
    (1, "auto", {}),
    (2, "auto", {}),
    (2, "auto", {"offload_optimizer": {"device": "cpu"}}),
    (3, "auto", {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}),
]
_Engine = zerobench.Engine


def _engine(group: dist.ProcessGroup | None, place: tuple[int, str, dict[str, Any]], **keys: Any) -> _Engine:
    stage, schedule, offload = place
    zero = {"stage": stage, "reduction_schedule": schedule, "chunk_size": 32, **offload}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": {**zero, "stage3_param_persistence_threshold": 0},
        **keys,
    }
    return zerobench.initialize(model, config, process_group=group)[0]


def _loss(engine: _Engine, leaf: int) -> Tensor:
    leaf = leaf * engine.ranks.world + engine.ranks.rank
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(leaf))
    return engine(x).square().mean()  # type: ignore[no-any-return]


def _state(engine: _Engine) -> Tensor:
    """The norm and all masters."""
    norm = torch.tensor([engine.get_global_grad_norm()])
    masters = [zerobench.safe_get_full_fp32_param(p) for p in engine.module.parameters()]
    return torch.cat([norm, *(each.flatten() for each in masters if each is not None)])


def _counted(engine: _Engine, leaves: list[int]) -> None:
    for leaf in leaves:
        engine.backward(_loss(engine, leaf))
        engine.step()


def _declared(engine: _Engine, leaves: list[int], *, scale: float = 1, mean: bool = True, often: bool = False) -> None:
    for leaf in leaves:
        engine.set_gradient_accumulation_boundary(leaf == leaves[-1])
        engine.backward(_loss(engine, leaf) * scale, scale_wrt_gas=mean)
        if often or leaf == leaves[-1]:
            engine.step()


def _once(engine: _Engine, leaves: list[int]) -> None:
    for leaf in leaves:
        engine.backward(_loss(engine, leaf))
    engine.step()


_STYLES: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
    "declared": (_declared, {}),
    "declared, each with a step()": (partial(_declared, often=True), {}),
    "scaled by the caller": (partial(_declared, scale=0.25, mean=False), {}),
    "by step()": (_once, {"managed_gradient_accumulation": False}),
}


def _trajectory(group: dist.ProcessGroup | None, place: Any, style: str) -> Tensor:
    """The states of three steps of four micro-steps each."""
    train, keys = _STYLES.get(style, (_counted, {}))
    engine, states = _engine(group, place, gradient_accumulation_steps=4, **keys), []
    for step in range(_STEPS):
        train(engine, list(range(4 * step, 4 * step + 4)))
        states.append(_state(engine))
    assert (engine.global_steps, engine.micro_steps) == (_STEPS, 4 * _STEPS)
    engine.destroy()
    return torch.stack(states)


def _every_style(group: dist.ProcessGroup, place: Any) -> list[Tensor]:
    return [_trajectory(group, place, style) for style in ("counted", *_STYLES)]


@pytest.mark.parametrize("place", _PLACES, ids=str)
def test_styles_are_one_trajectory(pool: Pool, place: Any) -> None:
    """All ways to end a step give the same bits, wherever the sums lie; a quarter is exact."""
    first, *others = [one for rank in pool.run(_every_style, place, world=2) for one in rank]
    assert all(torch.equal(first, other) for other in others)


def _short(group: dist.ProcessGroup, place: Any) -> tuple[Tensor, Tensor]:
    """Two steps of two micro-steps, declared early by an engine of four; and counted, of half the loss."""
    engine = _engine(group, place, gradient_accumulation_steps=4)
    for leaves in ([0, 1], [2, 3]):
        _declared(engine, leaves)
    early = _state(engine)
    engine.destroy()
    engine = _engine(group, place, gradient_accumulation_steps=2)
    for leaf in range(4):
        engine.backward(_loss(engine, leaf) * 0.5)
        engine.step()
    halved = _state(engine)
    engine.destroy()
    return early, halved


@pytest.mark.parametrize("place", _PLACES, ids=str)
def test_an_early_boundary(pool: Pool, place: Any) -> None:
    """The sum of a short step is divided by the configured micro-steps, as DeepSpeed does."""
    for early, halved in pool.run(_short, place, world=2):
        assert torch.equal(early, halved)


def test_wrong_orders() -> None:
    """Backwards that no step can follow are refused by the call that finds them, and the engine trains on."""
    engine = _engine(None, _PLACES[0], gradient_accumulation_steps=2)
    engine.backward(_loss(engine, 0))
    with pytest.raises(RuntimeError, match=r"backward\(\) was called twice"):
        engine.backward(_loss(engine, 1))
    engine.set_gradient_accumulation_boundary(True)
    with pytest.raises(RuntimeError, match="differ in scale_wrt_gas"):
        engine.backward(_loss(engine, 1), scale_wrt_gas=False)
    engine.backward(_loss(engine, 1))
    with pytest.raises(RuntimeError, match=r"backward\(\) was called twice"):
        engine.backward(_loss(engine, 2))
    engine.step()
    with pytest.raises(RuntimeError, match=r"step\(\) was called without backward"):
        engine.step()
    engine = _engine(None, _PLACES[0], managed_gradient_accumulation=False)
    with pytest.raises(RuntimeError, match="each step\\(\\) is the boundary; do not declare it"):
        engine.set_gradient_accumulation_boundary(True)


def test_a_boundary_declared_after_the_backward() -> None:
    """The step then ends with the backward before it, with the same bits."""
    states = []
    for late in (False, True):
        engine = _engine(None, _PLACES[3], gradient_accumulation_steps=2)
        for leaf in (0, 1):
            engine.set_gradient_accumulation_boundary(leaf == 1 and not late)
            engine.backward(_loss(engine, leaf))
        engine.set_gradient_accumulation_boundary(True)
        engine.step()
        states.append(_state(engine))
    assert torch.equal(*states)


def test_no_sum_is_kept() -> None:
    """One micro-step and offload keep no sum between micro-steps, so a second one would be lost: it is refused."""
    engine = _engine(None, _PLACES[4])
    engine.set_gradient_accumulation_boundary(False)
    with pytest.raises(RuntimeError, match="offload_optimizer keeps no sum of gradients between micro-steps; set"):
        engine.backward(_loss(engine, 0))


def _evaluated(group: dist.ProcessGroup, stage: int) -> tuple[Tensor, list[bool]]:
    engine = _engine(group, (stage, "auto", {}), optimizer=None)
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y = engine(x)
    with pytest.raises(RuntimeError, match="has no optimizer, so it only evaluates"):
        engine.backward(engine(x).sum())
    kept = sum(t.numel() for t in engine.resident()["optimizer"] + engine.resident()["gradients"])
    assert kept == 0
    engine.destroy()
    return y, [p.requires_grad for p in engine.module.parameters()]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_no_optimizer(pool: Pool, stage: int) -> None:
    """The engine evaluates with the model's bits, keeps no training state, and leaves requires_grad as it is."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
    expected = model(torch.randn(4, 5, generator=torch.Generator().manual_seed(0)))
    for y, flags in pool.run(_evaluated, stage, world=2):
        assert torch.equal(y, expected)
        assert flags == [True] * 4
