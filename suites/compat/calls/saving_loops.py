"""Loops that save whole weights and read them again; each runs on every rank."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from zerobench.suites.compat import loops


def exported(group: dist.ProcessGroup, stage: int, folder: str) -> bool:
    """Whole weights: the file of save_16bit_model, and gathered ones, against the masters."""
    ds, net = loops.deepspeed(), loops.model()
    keys = loops.config(stage)
    keys["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    engine, *_ = ds.initialize(model=net, config=keys)
    expected = loops.masters(net)
    assert engine.save_16bit_model(folder, f"{stage}.bin")
    if stage == 3:
        whole = engine._consolidated_16bit_state_dict()
    else:
        with pytest.raises(ValueError, match="stage 3"):
            engine._consolidated_16bit_state_dict()
        whole = engine._zero3_consolidated_16bit_state_dict()
    assert (whole is None) == (dist.get_rank() > 0)
    dist.barrier()
    saved = torch.load(Path(folder) / f"{stage}.bin", weights_only=True)
    with ds.zero.GatheredParameters(list(engine.parameters()), fwd_module=net):
        gathered = torch.cat([p.detach().flatten() for p in engine.parameters()])
    right = torch.equal(gathered, expected) and torch.equal(torch.cat([v.flatten() for v in saved.values()]), expected)
    engine.destroy()
    return right and list(saved) == list(loops.model().state_dict())


def recovered(group: dist.ProcessGroup, stage: int, folder: str) -> list[bool]:
    """zero_to_fp32 on a checkpoint with a frozen parameter: the masters, a file of each kind, and a plain model."""
    ds, net = loops.deepspeed(), loops.model()
    net.get_parameter("0.bias").requires_grad_(False)
    engine, _, loader, _ = ds.initialize(model=net, training_data=loops.data(), config=loops.config(stage))
    for batch in list(loader)[:2]:
        engine.backward(loops.loss(engine, batch))
        engine.step()
    expected = {name: ds.utils.safe_get_full_fp32_param(p) for name, p in net.named_parameters() if p.requires_grad}
    with ds.zero.GatheredParameters(net.get_parameter("0.bias")):
        frozen = net.get_parameter("0.bias").detach().clone()
    engine.save_checkpoint(f"{folder}/{stage}")
    tools, out = ds.utils.zero_to_fp32, Path(folder) / f"{stage}-{dist.get_rank()}"
    state = tools.get_fp32_state_dict_from_zero_checkpoint(f"{folder}/{stage}")
    trained = tools.get_fp32_state_dict_from_zero_checkpoint(f"{folder}/{stage}", exclude_frozen_parameters=True)
    tools.convert_zero_checkpoint_to_fp32_state_dict(f"{folder}/{stage}", out)
    tools.convert_zero_checkpoint_to_fp32_state_dict(f"{folder}/{stage}", out, safe_serialization=True)
    again = tools.load_state_dict_from_zero_checkpoint(loops.model(), f"{folder}/{stage}")
    engine.destroy()
    read = torch.load(out / "pytorch_model.bin", weights_only=True)
    return [
        sorted(state) == sorted(loops.model().state_dict()),
        dict.fromkeys(trained, True) == {name: torch.equal(trained[name], p) for name, p in expected.items()},
        torch.equal(state["0.bias"], frozen),
        all(torch.equal(value, read[name]) for name, value in state.items()),
        all(torch.equal(value, state[name]) for name, value in again.state_dict().items()),
        sorted(path.name for path in out.iterdir()) == ["model.safetensors", "pytorch_model.bin"],
    ]


def tied(group: dist.ProcessGroup, stage: int, folder: str) -> list[bool]:
    """zero_to_fp32 on a checkpoint of a model with one parameter of two names."""
    ds, net = loops.deepspeed(), nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
    net[2].weight = net[0].weight
    engine, *_ = ds.initialize(model=net, config=loops.config(stage))
    engine.save_checkpoint(f"{folder}/{stage}")
    tools, out = ds.utils.zero_to_fp32, Path(folder) / f"{stage}-{dist.get_rank()}"
    state = tools.get_fp32_state_dict_from_zero_checkpoint(f"{folder}/{stage}")
    for safe in (False, True):
        tools.convert_zero_checkpoint_to_fp32_state_dict(f"{folder}/{stage}", out, safe_serialization=safe)
    engine.destroy()
    other = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
    other.load_state_dict(torch.load(out / "pytorch_model.bin", weights_only=True))
    return [
        list(state) == ["0.weight", "2.weight"] and state["0.weight"] is state["2.weight"],
        torch.equal(other.get_parameter("2.weight"), state["0.weight"]),
        (out / "model.safetensors").stat().st_size < 2 * 64 + 64,
    ]


def within_a_step(group: dist.ProcessGroup, stage: int, folder: str) -> list[bool]:
    """Save after the first micro-step of the second step, go on, and load: the masters, and training as without it."""
    ds, net = loops.deepspeed(), loops.model()
    engine, _, loader, _ = ds.initialize(model=net, training_data=loops.data(), config=loops.config(stage))
    first, second = list(loader)[:2], list(loader)[2:4]

    def train(batches: list[object]) -> torch.Tensor:
        for batch in batches:
            engine.backward(loops.loss(engine, batch))
            engine.step()
        return loops.masters(net)

    saved = train(first)
    train(second[:1])
    engine.save_checkpoint(f"{folder}/{stage}", tag=7)
    after = train(second[1:])
    engine.load_checkpoint(f"{folder}/{stage}")
    loaded, again = loops.masters(net), train(second)
    steps = engine.global_steps
    engine.destroy()
    return [torch.equal(loaded, saved), torch.equal(again, after), steps == 2]


def loaded_within_a_step(group: dist.ProcessGroup, stage: int, folder: str) -> list[tuple[int, int, bool]]:
    """Steps, micro-steps and the boundary at a load after the third micro-step, and after each of three more."""
    net = loops.model()
    engine, _, loader, _ = loops.deepspeed().initialize(
        model=net, training_data=loops.data(), config=loops.config(stage)
    )
    found = []
    for number, batch in enumerate(list(loader)[:6]):
        if number == 3:
            engine.save_checkpoint(f"{folder}/{stage}")
            engine.load_checkpoint(f"{folder}/{stage}")
        if number >= 3:
            found.append((engine.global_steps, engine.micro_steps, engine.is_gradient_accumulation_boundary()))
        engine.backward(loops.loss(engine, batch))
        engine.step()
    engine.destroy()
    return found


class Buffered(nn.Module):
    """Buffers before, between and within layers: of no, one and two dimensions; and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(6.0).view(2, 3))
        self.first, self.norm = nn.Linear(5, 4), nn.BatchNorm1d(4)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("unsaved", torch.ones(1), persistent=False)
        self.register_buffer("bias", torch.zeros(4))
        self.last = nn.Linear(4, 3)
        self.first.weight.requires_grad_(False)


SAVED_BUFFERS = {"table", "bias", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


def orders(group: dist.ProcessGroup, stage: int, folder: str) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """The names and shapes of each kind of export, in its order; rank 0's."""
    ds = loops.deepspeed()
    keys = loops.config(stage)
    keys["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    engine, *_ = ds.initialize(model=Buffered(), config=keys)
    whole, module = engine._zero3_consolidated_16bit_state_dict(), engine.module_state_dict()
    trained = engine.module_state_dict(exclude_frozen_parameters=True)
    engine.save_16bit_model(folder, "whole.bin")
    engine.save_checkpoint(folder)
    engine.destroy()
    if dist.get_rank():
        return {}
    exports = {
        "whole": whole,
        "file": torch.load(Path(folder) / "whole.bin", weights_only=True),
        "fp32": ds.utils.zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder),
    }
    shapes = {kind: [(name, tuple(value.shape)) for name, value in each.items()] for kind, each in exports.items()}
    return shapes | {"module": [(name, ()) for name in module], "trained": [(name, ()) for name in trained]}
