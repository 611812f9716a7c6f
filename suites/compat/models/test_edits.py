"""A caller's changes after initialize(): edits of weights are trained on, and any other change is an error."""

from __future__ import annotations

import copy
import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.compat import log
from zerobench.ranks import Pool
from zerobench.suites.compat import loops

pytestmark = pytest.mark.usefixtures("reference")

_WORLD = 4
_BOUND = 0.05


def _engine(stage: int, keys: dict[str, Any]) -> tuple[nn.Module, Any, Any]:
    net = loops.model()
    given = loops.config(stage, gradient_accumulation_steps=1, train_batch_size=8)
    del given["scheduler"]
    zero = {**given["zero_optimization"], **(keys.get("zero_optimization", {}) if stage else {})}
    given |= {**keys, "zero_optimization": zero}
    engine, _, loader, _ = loops.deepspeed().initialize(model=net, training_data=loops.data(), config=given)
    return net, engine, loader


def _clamped(group: dist.ProcessGroup, stage: int, keys: dict[str, Any], sets: bool, folder: str) -> Tensor:
    """A GAN's clamp of all weights after each step, outside GatheredParameters below stage 3, in place or as new data;
    then a save and one more step. Returns the saved masters and those after it."""
    net, engine, loader = _engine(stage, keys)
    for batch in list(loader)[:3]:
        engine.backward(loops.loss(engine, batch))
        engine.step()
        with loops.deepspeed().zero.GatheredParameters(list(net.parameters()), enabled=stage == 3):
            for parameter in net.parameters():
                if sets:
                    parameter.data = parameter.data.clamp(-_BOUND, _BOUND)
                else:
                    parameter.data.clamp_(-_BOUND, _BOUND)
    engine.save_checkpoint(f"{folder}/{stage}")
    saved = loops.masters(net)
    engine.backward(loops.loss(engine, batch))
    engine.step()
    after = loops.masters(net)
    engine.destroy()
    return torch.stack([saved, after])


_OFFLOAD = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}


@pytest.mark.parametrize("sets", [False, True], ids=["in place", "new data"])
@pytest.mark.parametrize("keys", [{}, {"bf16": {"enabled": True}}, _OFFLOAD], ids=["fp32", "bf16", "offload"])
def test_edits(pool: Pool, keys: dict[str, Any], sets: bool, tmp_path: Path) -> None:
    """A save has the edited weights and the next step begins at them, at every stage, though the masters are kept
    elsewhere."""
    ranks = pool.run(loops.at_every_stage, _clamped, keys, sets, str(tmp_path), world=_WORLD)
    expected = ranks[0][0]
    assert float(expected[0].abs().max()) < _BOUND * 1.01
    assert float(expected[1].abs().max()) < _BOUND + 2e-2  # the step's learning rate is 1e-2
    for stages in ranks:
        assert all(torch.equal(after, expected) for after in stages)


def _clamped_after_a_skip(group: dist.ProcessGroup, stage: int) -> Tensor:
    """The same of a model of several units in bf16, after a step that an infinite loss skips; the masters after one
    more step."""
    net, engine, loader = _engine(stage, {"bf16": {"enabled": True}, "zero_optimization": {"reduce_bucket_size": 1}})
    for factor, batch in zip((1.0, float("inf"), 1.0), loader, strict=False):
        engine.backward(loops.loss(engine, batch) * factor)
        engine.step()
        assert engine.was_step_applied() == (factor == 1.0)
        if factor != 1.0:
            with loops.deepspeed().zero.GatheredParameters(list(net.parameters()), enabled=stage == 3):
                for parameter in net.parameters():
                    parameter.data.clamp_(-_BOUND, _BOUND)
    after = loops.masters(net)
    engine.destroy()
    return after


def test_edits_after_a_skipped_step(pool: Pool) -> None:
    """The step after it begins at the edited weights, in each unit."""
    for stages in pool.run(loops.at_every_stage, _clamped_after_a_skip, world=_WORLD):
        assert float(stages[0].abs().max()) < _BOUND + 2e-2  # the step's learning rate is 1e-2
        assert all(torch.equal(after, stages[0]) for after in stages)


def _moved(group: dist.ProcessGroup, stage: int, edit: str) -> bool:
    """Whether an edit that changes no value, but its place or sign, is in the masters after a step of no gradient."""
    net, engine, loader = _engine(stage, {"bf16": {"enabled": True}})
    batch = next(iter(loader))
    engine.backward(loops.loss(engine, batch))
    engine.step()
    layer = net[0]  # type: ignore[index]
    with loops.deepspeed().zero.GatheredParameters(list(net.parameters()), enabled=stage == 3):
        layer.weight.data.copy_(torch.arange(1.0, layer.weight.numel() + 1).view_as(layer.weight) - 40.5)
    engine.backward(0 * loops.loss(engine, batch))
    engine.step()
    with loops.deepspeed().zero.GatheredParameters(list(net.parameters()), enabled=stage == 3):
        layer.weight.data.copy_(layer.weight.flip(0) if edit == "flip" else -layer.weight)
        expected = layer.weight.detach().float().clone()
    for options in engine.optimizer.param_groups:
        options["lr"] = 0.0
    engine.backward(0 * loops.loss(engine, batch))
    engine.step()
    after = loops.deepspeed().utils.safe_get_full_fp32_param(layer.weight)
    engine.destroy()
    return bool(torch.equal(after, expected))


@pytest.mark.parametrize("edit", ["flip", "negate"])
def test_edits_that_change_no_value(pool: Pool, edit: str) -> None:
    """Rows that change places, and signs of as many positive as negative values: the sum of all bits stays the same."""
    assert pool.run(loops.at_every_stage, _moved, edit, world=_WORLD) == [[True] * 4] * _WORLD


def _averaged(group: dist.ProcessGroup, stage: int) -> list[Tensor]:
    """A copy of the model that follows it, as an average of its weights does; below stage 3."""
    net, engine, loader = _engine(stage, {"bf16": {"enabled": True}})
    average = copy.deepcopy(engine.module)
    for batch in list(loader)[:2]:
        engine.backward(loops.loss(engine, batch))
        engine.step()
        with torch.no_grad():
            for own, of in zip(average.parameters(), net.parameters(), strict=True):
                own.lerp_(of, 0.5)
    values = [each.detach().clone() for each in average.parameters()]
    average.load_state_dict(net.state_dict())
    assert all(map(torch.equal, average.parameters(), net.parameters()))
    engine.destroy()
    return values


def test_a_copy_of_the_model(pool: Pool) -> None:
    """It belongs to no engine; what the model loads has nothing to do with what the copy loads."""
    expected = pool.run(_averaged, 0, world=_WORLD)[0]
    for stage in (0, 1, 2):
        for values in pool.run(_averaged, stage, world=_WORLD):
            assert all(map(torch.equal, values, expected))


def _replaced(group: dist.ProcessGroup, stage: int) -> str:
    net, engine, loader = _engine(stage, {})
    net[2] = nn.Linear(16, 3)  # type: ignore[operator]
    engine.backward(loops.loss(engine, next(iter(loader))))
    with pytest.raises(RuntimeError) as caught:
        engine.step()
    engine.destroy()
    return str(caught.value)


def test_a_layer_replaced_after_initialize(pool: Pool) -> None:
    """The step says that the engine does not train it."""
    for texts in pool.run(loops.at_every_stage, _replaced, world=_WORLD):
        assert all("parameter '2.weight' is new since initialize()" in text for text in texts)


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def _clipped(group: dist.ProcessGroup, stage: int) -> tuple[float, int]:
    """The norm that the caller's clip finds, and the lines that say that it has no effect."""
    log._once.cache_clear()
    net, engine, loader = _engine(stage, {})
    kept, logger = _Kept(), logging.getLogger("DeepSpeed")
    logger.addHandler(kept)
    norms = []
    for batch in list(loader)[:2]:
        engine.backward(loops.loss(engine, batch))
        norms.append(float(torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-4)))
        with pytest.raises(RuntimeError, match="clip_grad_value_ finds no gradients of an engine's parameters"):
            torch.nn.utils.clip_grad_value_(net.parameters(), 1e-4)
        engine.step()
    logger.removeHandler(kept)
    engine.destroy()
    return max(norms), sum("clip_grad_norm_ has no effect" in text for text in kept.texts)


def test_a_clip_of_the_caller(pool: Pool) -> None:
    """It finds no gradients at any stage; rank 0 says so once."""
    first, *others = pool.run(loops.at_every_stage, _clipped, world=_WORLD)
    assert first == [(0.0, 1)] * 4
    assert others == [[(0.0, 0)] * 4] * 3


def _wrapped(group: dist.ProcessGroup, stage: int, wraps: bool) -> list[float] | str:
    """The losses of three steps, through DistributedDataParallel around the engine or without it; or the error."""
    _, engine, loader = _engine(stage, {})
    losses = []
    try:
        called = nn.parallel.DistributedDataParallel(engine, process_group=group) if wraps else engine
        for batch in list(loader)[:3]:
            loss = nn.functional.mse_loss(called(batch[0]), batch[1])
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    except RuntimeError as error:
        return str(error)
    finally:
        engine.destroy()
    return losses


def test_ddp_around_the_engine(pool: Pool) -> None:
    """Where every rank keeps the model whole it changes only the order in which gradients are added: it averages them,
    and the average of averages is the same. At stage 3 it is one clear error."""
    for plain, wrapped in zip(
        *(pool.run(loops.at_every_stage, _wrapped, wraps, world=_WORLD) for wraps in (False, True)), strict=True
    ):
        for ours, theirs in zip(wrapped[:3], plain[:3], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-6)
        assert "DistributedDataParallel cannot take a model that an engine shards at stage 3" in wrapped[3]


def _scripted(group: dist.ProcessGroup, stage: int) -> bool:
    """A bf16 model with a compiled layer loads its first weights after a step."""
    torch.manual_seed(0)
    with warnings.catch_warnings(category=DeprecationWarning, action="ignore"):  # new versions advise against it
        net = nn.Sequential(nn.Linear(5, 4), torch.jit.script(nn.Linear(4, 3)))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    given = loops.config(stage, gradient_accumulation_steps=1, train_batch_size=8, bf16={"enabled": True})
    del given["scheduler"]  # its first step has a learning rate of 0
    engine, _, loader, _ = loops.deepspeed().initialize(model=net, training_data=loops.data(), config=given)
    engine.backward(loops.loss(engine, next(iter(loader))))
    engine.step()
    net.load_state_dict(before)
    after = {name: loops.deepspeed().utils.safe_get_full_fp32_param(p) for name, p in net.named_parameters()}
    engine.destroy()
    return all(torch.equal(after[name], value.bfloat16().float()) for name, value in before.items())


def test_a_compiled_layer(pool: Pool) -> None:
    """A module of TorchScript is trained and loaded below stage 3."""
    for stage in (0, 2):
        assert all(pool.run(_scripted, stage, world=_WORLD))


def _put_back(group: dist.ProcessGroup, stage: int, keys: dict[str, Any], evaluates: str) -> Tensor:
    """Training with an evaluation of averaged weights after each step, which are put back; "never" has none."""
    net, engine, loader = _engine(stage, keys)
    context = loops.deepspeed().zero.GatheredParameters
    for batch in loader:
        engine.backward(loops.loss(engine, batch))
        engine.step()
        if evaluates == "never":
            continue
        enabled = evaluates == "always" or stage == 3
        with context(list(net.parameters()), modifier_rank=0, enabled=enabled):
            kept = [parameter.detach().clone() for parameter in net.parameters()]
            for parameter in net.parameters():
                parameter.data.mul_(0.9)
        with torch.no_grad():
            engine(batch[0].to(kept[0].dtype))
        with context(list(net.parameters()), modifier_rank=0, enabled=enabled):
            for parameter, value in zip(net.parameters(), kept, strict=True):
                parameter.data.copy_(value)
    after = loops.masters(net)
    engine.destroy()
    return after


@pytest.mark.parametrize("keys", [{"bf16": {"enabled": True}}, {"fp16": {"enabled": True}}, _OFFLOAD], ids=str)
def test_weights_that_are_put_back(pool: Pool, keys: dict[str, Any]) -> None:
    """Averaged weights for an evaluation in 16 bits: their masters had become those of the rounded weights."""
    [never, *_], *_ = pool.run(loops.at_every_stage, _put_back, keys, "never", world=_WORLD)
    for evaluates in ("always", "stage 3"):
        for stages in pool.run(loops.at_every_stage, _put_back, keys, evaluates, world=_WORLD):
            assert all(torch.equal(after, never) for after in stages)


def _read_after_an_edit(group: dist.ProcessGroup, stage: int, folder: str) -> list[Tensor]:
    """Masters that are read, and those of a checkpoint, at once after an edit in GatheredParameters."""
    ds = loops.deepspeed()
    net, engine, loader = _engine(stage, {"bf16": {"enabled": True}})
    engine.backward(loops.loss(engine, next(iter(loader))))
    engine.step()
    with ds.zero.GatheredParameters(list(net.parameters()), modifier_rank=1):
        for parameter in net.parameters():
            parameter.data.fill_(0.5)
    engine.save_checkpoint(f"{folder}/{stage}")
    read = loops.masters(net)
    with ds.zero.GatheredParameters(list(net.parameters())):
        for parameter in net.parameters():
            parameter.data.fill_(0.25)
    again = loops.masters(net)
    with ds.zero.GatheredParameters(list(net.parameters())):
        for parameter in net.parameters():
            parameter.data.fill_(0.125)
    first = next(iter(net.parameters()))
    ds.utils.safe_set_full_fp32_param(first, torch.full(first.shape, 3.0))
    engine.load_checkpoint(f"{folder}/{stage}")
    loaded = loops.masters(net)
    engine.destroy()
    return [read, again, loaded]


def test_masters_after_an_edit(pool: Pool, tmp_path: Path) -> None:
    """A reading, a save and a load see the edit at once, and a load drops it."""
    for stages in pool.run(loops.at_every_stage, _read_after_an_edit, str(tmp_path), world=_WORLD):
        for read, again, loaded in stages:
            assert (read == 0.5).all()
            assert (again == 0.25).all()
            assert (loaded == 0.5).all()
