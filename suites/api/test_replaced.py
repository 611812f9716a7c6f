"""Data that a caller sets, outside GatheredParameters: ``p.data = ...`` is an edit as ``p.data.copy_(...)`` is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import zerobench
from zerobench.ranks import Pool

pytestmark = pytest.mark.usefixtures("reference")

_WORLD = 2
_Edit = Callable[[list[nn.Parameter]], None]


def _clamp(parameters: list[nn.Parameter]) -> None:
    for p in parameters:
        p.data = p.data.clamp(-0.1, 0.1)


def _clamp_the_second(parameters: list[nn.Parameter]) -> None:
    _clamp(parameters[2:3])


def _exchange(parameters: list[nn.Parameter]) -> None:
    first, third = parameters[0], parameters[2]
    first.data, third.data = third.data, first.data


def _from_a_vector(parameters: list[nn.Parameter]) -> None:
    vector_to_parameters(parameters_to_vector(parameters) * 0.5, parameters)


_EDITS: dict[str, _Edit] = {edit.__name__: edit for edit in (_clamp, _clamp_the_second, _exchange, _from_a_vector)}


def _engine(group: dist.ProcessGroup, stage: int, keys: dict[str, Any]) -> tuple[Any, list[nn.Parameter], Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    optimizer = {"type": "AdamW", "params": {"lr": 1e-2}}
    config = {
        "train_micro_batch_size_per_gpu": 3,
        "optimizer": optimizer,
        "zero_optimization": {"stage": stage},
        **keys,
    }
    engine, *_ = zerobench.initialize(model=model, config=config, process_group=group)
    batch = torch.randn(3, 6, generator=torch.Generator().manual_seed(dist.get_rank(group)))
    return engine, list(model.parameters()), batch.to(next(model.parameters()).dtype)


def _train(engine: Any, batch: Tensor) -> None:
    engine.backward(engine(batch).float().square().mean())
    engine.step()


def _masters(parameters: list[nn.Parameter]) -> list[Tensor]:
    found = [zerobench.safe_get_full_fp32_param(p) for p in parameters]
    return [each for each in found if each is not None]


def _after(group: dist.ProcessGroup, edit: str, stage: int, keys: dict[str, Any], sets: bool) -> list[Tensor]:
    """The masters after an edit and each of two steps; ``sets`` leaves the edit outside any context."""
    engine, parameters, batch = _engine(group, stage, keys)
    _train(engine, batch)
    if sets:
        _EDITS[edit](parameters)
    else:
        copies = [nn.Parameter(p.detach().clone()) for p in parameters]
        _EDITS[edit](copies)
        with zerobench.GatheredParameters(parameters):
            for p, copy in zip(parameters, copies, strict=True):
                p.data.copy_(copy)
    _train(engine, batch)
    found = _masters(parameters)
    _train(engine, batch)
    engine.destroy()
    return found + _masters(parameters)


_BF16: dict[str, Any] = {"bf16": {"enabled": True}}


@pytest.mark.parametrize("edit", _EDITS)
@pytest.mark.parametrize(("stage", "keys"), [(0, {}), (0, _BF16), (1, {}), (2, _BF16)])
def test_an_edit_is_trained(pool: Pool, edit: str, stage: int, keys: dict[str, Any]) -> None:
    """The steps that follow are those after the same edit in place, bit for bit."""
    expected = pool.run(_after, edit, stage, keys, False, world=_WORLD)
    for own, given in zip(pool.run(_after, edit, stage, keys, True, world=_WORLD), expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(own, given, strict=True))


def _read_at_once(group: dist.ProcessGroup, folder: str) -> list[bool]:
    """Whether readings, a setting, a save and a load that follow an edit at once have the new data."""
    engine, parameters, batch = _engine(group, 1, _BF16)
    _train(engine, batch)
    parameters[2].data = torch.full_like(parameters[2].data, 0.5)
    found = [bool((_masters(parameters)[2] == 0.5).all())]
    before = parameters[0].detach().clone()
    parameters[0].data = parameters[0].data.t()  # the same memory
    found.append(torch.equal(_masters(parameters)[0].bfloat16(), before.t()))
    parameters[0].data = torch.full_like(parameters[0].data, 0.25)
    engine.save_checkpoint(folder, "edited")
    parameters[0].data = torch.full_like(parameters[0].data, 0.75)
    engine.load_checkpoint(folder, "edited")
    found.append(bool((_masters(parameters)[0] == 0.25).all() and (parameters[0] == 0.25).all()))
    parameters[1].data = torch.full_like(parameters[1].data, 0.75)
    zerobench.safe_set_full_fp32_param(parameters[1], torch.full((6,), 2.0))
    _train(engine, batch)
    found.append(bool((_masters(parameters)[1] > 1.9).all()))
    engine.destroy()
    return found


def test_an_edit_is_read(pool: Pool, tmp_path: Path) -> None:
    """By safe_get_full_fp32_param and save_checkpoint; what is loaded or set afterwards replaces it."""
    assert pool.run(_read_at_once, str(tmp_path), world=_WORLD) == [[True] * 4] * _WORLD


def _converted(group: dist.ProcessGroup, folder: str) -> str:
    engine, parameters, batch = _engine(group, 0, {})
    _train(engine, batch)
    before = _masters(parameters)[2]
    parameters[2].data = parameters[2].data.double()
    engine.save_checkpoint(folder)
    assert torch.equal(_masters(parameters)[2], before)
    engine.backward(engine.module[:2](batch).square().mean())
    with pytest.raises(RuntimeError) as caught:
        engine.step()
    engine.destroy()
    return str(caught.value)


def test_data_of_another_dtype(pool: Pool, tmp_path: Path) -> None:
    """A save has the masters, as after a conversion for an export; the next step is an error with both dtypes."""
    for text in pool.run(_converted, str(tmp_path), world=_WORLD):
        assert "the data of parameter '2.weight' was replaced after initialize()" in text
        assert "torch.float64 (6, 6) on cpu, and the engine trains torch.float32 (6, 6) on cpu" in text


_SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "fewer rows of another tensor": lambda own: own[:3].clone(),
    "fewer rows of its own memory": lambda own: own[:3],
    "one dimension": lambda own: own.flatten(),
    "as many elements": lambda own: own.view(4, 9).clone(),
}


def _reshaped(group: dist.ProcessGroup, shape: str) -> str:
    engine, parameters, batch = _engine(group, 0, {})
    _train(engine, batch)
    parameters[2].data = _SHAPES[shape](parameters[2].data)
    engine.backward(engine.module[:2](batch).square().mean())
    with pytest.raises(RuntimeError) as caught:
        engine.step()
    engine.destroy()
    return str(caught.value)


@pytest.mark.parametrize("shape", _SHAPES)
def test_data_of_another_shape(pool: Pool, shape: str) -> None:
    """The next step is an error with both shapes."""
    for text in pool.run(_reshaped, shape, world=_WORLD):
        assert "the data of parameter '2.weight' was replaced after initialize()" in text
        assert "and the engine trains torch.float32 (6, 6) on cpu" in text
