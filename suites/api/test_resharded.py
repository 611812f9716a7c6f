"""Parameters of stage 3 outside of forward: each use of their values is right, or one error that names the parameter.

Every use runs on a rank, so that a use that ends the process fails a test and not pytest.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import zerobench
from zerobench.ranks import Pool

pytestmark = pytest.mark.ci

_NAMED = r"parameter '0\.weight' is sharded and not whole here"
_X = torch.ones(2, 8)

#: Uses of a parameter's values, by torch, by Python and by other libraries.
READS: dict[str, Callable[[Any], object]] = {
    "clone": lambda w: w.clone(),
    "norm": lambda w: w.norm(),
    "operator": lambda w: w + 1,
    "comparison": lambda w: w > 0,
    "matmul": lambda w: w @ w.T,
    "functional": lambda w: nn.functional.linear(_X, w),
    "out": lambda w: torch.add(torch.ones(8, 8), w, out=torch.empty(8, 8)),
    "in-a-list": lambda w: torch.stack([torch.ones(8, 8), w]),
    "foreach": lambda w: torch._foreach_norm([w]),
    "operation": torch.ops.aten.sum,
    "index": lambda w: w[0],
    "iteration": list,
    "view": lambda w: w.view(-1),
    "transpose": lambda w: w.T,
    "item": lambda w: w.sum().item(),
    "list": lambda w: w.tolist(),
    "bool": lambda w: bool(w[0, 0]),
    "equal": lambda w: torch.equal(w, w),
    "conversion": lambda w: w.to(torch.float64),
    "data": lambda w: w.data.clone(),
    "detached": lambda w: w.detach().sum(),
    "view-of-data": lambda w: w.data.view(torch.uint8),
    "numpy": lambda w: w.detach().numpy(),
    "array": np.asarray,
    "dlpack": lambda w: np.from_dlpack(w.detach()),
    "address": lambda w: w.data_ptr(),
    "typed-storage": lambda w: w.storage(),
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "save": lambda w: torch.save(w, io.BytesIO()),
    "save-detached": lambda w: torch.save(w.detach(), io.BytesIO()),
    "vector": lambda w: nn.utils.parameters_to_vector([w]),
}
WRITES: dict[str, Callable[[Any], object]] = {
    "fill": lambda w: w.data.fill_(1.0),
    "add": lambda w: w.detach().add_(1.0),
    "init": nn.init.zeros_,
    "init-by-keyword": lambda w: nn.init.normal_(w, std=0.1),
    "no-grad": lambda w: torch.no_grad()(w.mul_)(2.0),
    "item-into": lambda w: w.data.__setitem__(0, 1.0),
    "copy-into": lambda w: w.data.copy_(torch.ones(8, 8)),
    "data-into": lambda w: setattr(w, "data", torch.ones(8, 8)),
    "resize": lambda w: w.data.resize_(1),
    "share": lambda w: w.share_memory_(),
    "vector-into": lambda w: nn.utils.vector_to_parameters(torch.ones(64), [w]),
}


class _Marked(nn.Parameter):
    """A client's own class of parameters."""


def _built(group: dist.ProcessGroup | None, **zero: Any) -> tuple[nn.Sequential, zerobench.Engine]:
    """A model of three units, the last one frozen, that has trained a step and kept its units whole."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8, bias=False))
    model[1].weight = _Marked(model.get_parameter("1.weight").data)
    model[2].requires_grad_(False)
    config = {
        "train_batch_size": 2,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 3, "chunk_size": 32, "stage3_param_persistence_threshold": 0, **zero},
    }
    engine = zerobench.initialize(model, config, process_group=group)[0]
    _train(engine)
    return model, engine


def _train(engine: zerobench.Engine) -> float:
    loss = engine(_X).square().mean()
    engine.backward(loss)
    engine.step()
    return float(loss.detach())


def _refused(group: dist.ProcessGroup, use: str, where: str) -> None:
    """A use after a step, and after an evaluation, which leaves the unit's memory there."""
    model, engine = _built(group)
    for moment in ("step", "evaluation"):
        if moment == "evaluation":
            with torch.no_grad():
                engine(_X)
        with pytest.raises(RuntimeError, match=rf"parameter '{where}' is sharded and not whole here"):
            {**READS, **WRITES}[use](model.get_parameter(where))
    _train(engine)
    engine.destroy()


@pytest.mark.parametrize("use", [*READS, *WRITES])
def test_a_use_names_the_parameter(pool: Pool, use: str) -> None:
    """Each raises, also if the unit's memory is still there, because a write would be lost. Training goes on."""
    pool.run(_refused, use, "0.weight", world=2)


@pytest.mark.parametrize("where", ["0.bias", "1.weight", "2.weight"])
def test_every_parameter_refuses(pool: Pool, where: str) -> None:
    """A vector, one of a class of its own, and a frozen one."""
    pool.run(_refused, "norm", where, world=2)


def test_all_of_them_are_named(pool: Pool) -> None:
    """The error of a call on several parameters names them all."""
    [message] = pool.run(_on_two, world=1)
    assert message.startswith("parameter '0.weight', '1.weight' is sharded")


def _on_two(group: dist.ProcessGroup) -> str:
    model, _ = _built(group, stage3_max_live_parameters=0)
    with pytest.raises(RuntimeError) as refused:
        torch.cat([model.get_parameter("0.weight"), model.get_parameter("1.weight")])
    return str(refused.value)


def test_torch_that_does_not_ask(pool: Pool) -> None:
    """If C++ takes a tensor unchecked, it finds NaN; a collective names the parameter."""
    assert all(read.isnan().all() for read in pool.run(_unasked, world=2))


def _unasked(group: dist.ProcessGroup) -> Tensor:
    model, _ = _built(group)
    weight = model.get_parameter("0.weight")
    with pytest.raises(RuntimeError, match=_NAMED):
        dist.broadcast(weight, dist.get_global_rank(group, 0), group=group)
    return torch.vmap(torch.sum)(weight)


def test_what_it_is_can_be_asked(pool: Pool) -> None:
    """Shape, dtype, device, strides, gradient, hooks, and a list of them all."""
    assert pool.run(_asked, world=2) == [None, None]


def _asked(group: dist.ProcessGroup) -> None:
    model, engine = _built(group, stage3_max_live_parameters=0)
    weight = model.get_parameter("0.weight")
    assert isinstance(weight, nn.Parameter)
    assert (weight.shape, weight.numel(), weight.dim(), len(weight)) == ((8, 8), 64, 2, 8)
    assert (weight.stride(), weight.is_contiguous(), weight.dtype) == ((8, 1), True, torch.float32)
    assert (weight.device, weight.requires_grad, weight.grad) == (torch.device("cpu"), True, None)
    assert (weight.data.shape, weight.detach().numel(), weight.nbytes) == ((8, 8), 64, 256)
    assert weight.untyped_storage().nbytes() == 0
    assert (torch.typename(weight), weight.dim_order(), weight.is_pinned()) == ("torch.FloatTensor", (0, 1), False)
    assert "(0): Parameter containing: [torch.float32 of size 8x8]" in repr(nn.ParameterList([weight]))
    assert (weight == None, weight != None) == (False, True)  # noqa: E711
    assert torch.zeros_like(weight).sum() == 0
    with pytest.raises(RuntimeError, match=_NAMED):
        copy.copy(weight).norm()
    assert repr(weight) == f"{weight}" == str(weight.data)
    assert repr(weight) == "<parameter '0.weight': torch.float32 (8, 8), sharded and not whole here>"
    assert weight in set(model.parameters())
    assert sum(p.numel() for p in model.parameters()) == 3 * 64 + 16
    weight.register_hook(lambda gradient: None)  # type: ignore[no-untyped-call]
    state = model.state_dict()
    assert list(state) == ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight"]
    with pytest.raises(RuntimeError, match=_NAMED):
        torch.save(state, io.BytesIO())
    with pytest.raises(RuntimeError, match=_NAMED):
        copy.deepcopy(model)
    _train(engine)
    engine.destroy()
    with pytest.raises(RuntimeError, match=_NAMED):
        weight.norm()


def test_conversions_to_itself(pool: Pool) -> None:
    """``Module.to`` of the dtype and device that the parameters have does nothing; any other one is the error."""
    assert pool.run(_converted, world=2) == [None, None]


def _converted(group: dist.ProcessGroup) -> None:
    model, engine = _built(group)
    weight: Any = model.get_parameter("0.weight")
    for same in (weight.to("cpu"), weight.to("cpu:0", torch.float32), weight.to(dtype=torch.float32), weight.float()):
        assert same is weight
    assert weight.type(torch.float32) is weight.type(dtype=torch.float32) is weight
    assert model.to("cpu").cpu().float().type(torch.float32) is model
    others: list[Callable[[], object]] = [
        model.half,
        weight.double,
        lambda: model.type(torch.bfloat16),
        lambda: model.to(torch.bfloat16),
        lambda: weight.to("meta"),
        lambda: weight.to("cpu", copy=True),
        lambda: weight.to(torch.ones(1)),
    ]
    for other in others:
        with pytest.raises(RuntimeError, match=_NAMED):
            other()
    _train(engine)
    engine.destroy()


def test_a_module_in_a_file(pool: Pool) -> None:
    """torch.save(module) while its parameters are gathered makes a file of an ordinary module; so does a deep copy."""
    for copied in pool.run(_copied_by, world=2):
        assert copied == ["pickle", "deepcopy", "refused"]


def _copied_by(group: dist.ProcessGroup) -> list[str]:
    model, engine = _built(group)
    file, ways = io.BytesIO(), []
    with zerobench.GatheredParameters(model):
        torch.save(model, file)
        by_copy = copy.deepcopy(model)
        expected = model(_X)
    file.seek(0)
    for way, made in (("pickle", torch.load(file, weights_only=False)), ("deepcopy", by_copy)):
        if torch.equal(made(_X), expected):
            ways.append(way)
    with pytest.raises(RuntimeError, match=r"parameter '0\.weight' is sharded and not whole here"):
        torch.save(model, io.BytesIO())
    _train(engine)
    engine.destroy()
    return [*ways, "refused"]


def test_inside_it_is_a_parameter_like_any(pool: Pool) -> None:
    """In GatheredParameters and in forward: of its own class, with its values, saved and copied as ever."""
    assert pool.run(_inside, world=2) == [None, None]


def _inside(group: dist.ProcessGroup) -> None:
    model, engine = _built(group)
    weight, marked = model.get_parameter("0.weight"), model.get_parameter("1.weight")
    expected = zerobench.safe_get_full_fp32_param(weight)
    assert expected is not None
    seen: list[bool] = []
    model[0].register_forward_hook(lambda *_: seen.append(type(weight) is nn.Parameter and bool(weight.norm() > 0)))
    with zerobench.GatheredParameters(model):
        assert type(weight) is nn.Parameter
        assert type(marked) is _Marked
        assert torch.equal(weight, expected)
        assert torch.equal(copy.deepcopy(model).get_parameter("0.weight"), expected)
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        torch.no_grad()(engine)(_X)  # an evaluation does not end the gathering
        assert torch.equal(weight, expected)
    assert torch.equal(torch.load(io.BytesIO(buffer.getvalue()))["0.weight"], expected)
    assert seen == [True]


_LENT: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "numpy": ("0.weight", lambda w: w.detach().numpy()),
    "numpy-of-data": ("0.weight", lambda w: w.data.numpy()),
    "numpy-frozen": ("2.weight", lambda w: w.numpy()),
    "array": ("2.weight", np.asarray),
    "dlpack": ("0.weight", lambda w: np.from_dlpack(w.detach())),
    "dlpack-frozen": ("2.weight", np.from_dlpack),
    "torch-frozen": ("2.weight", torch.utils.dlpack.from_dlpack),
    "view": ("0.weight", lambda w: w.detach()[1:]),
    "storage": ("0.weight", lambda w: w.untyped_storage()),
    "bytes": ("0.weight", lambda w: memoryview(w.detach().numpy())),
    "shared": ("0.weight", lambda w: w.data.share_memory_()),
}


@pytest.mark.parametrize("name", _LENT)
@pytest.mark.parametrize("kept", [False, True])
def test_memory_that_was_lent(pool: Pool, name: str, kept: bool) -> None:
    """An array or a view of a parameter may outlive GatheredParameters: training goes on, and the memory is freed with
    its last user."""
    for losses, expected, resident in pool.run(_lend, name, kept, world=2):
        assert losses == expected
        assert not any(resident)


def _lend(group: dist.ProcessGroup, name: str, kept: bool) -> tuple[list[float], list[float], list[bool]]:
    where, lend = _LENT[name]
    _, plain = _built(group, stage3_max_live_parameters=0)
    expected = [_train(plain) for _ in range(3)]
    model, engine = _built(group, stage3_max_live_parameters=0)
    parameter = model.get_parameter(where)
    values = b""
    for _ in range(2):  # the second time it is other memory
        with zerobench.GatheredParameters(parameter):
            lent = lend(parameter)
            values = np.array(parameter.detach()).tobytes()
        if not kept:
            del lent
    if kept:
        assert _bytes(lent) in values or values in _bytes(lent)  # a storage is the whole unit's
    losses = [_train(engine)]
    if kept:
        assert np.isfinite(np.frombuffer(_bytes(lent), np.float32)).all()
        del lent
    losses += [_train(engine), _train(engine)]
    return losses, expected, [state.resident for state in engine.states]


def _bytes(lent: Any) -> bytes:
    return bytes(iter(lent)) if isinstance(lent, torch.UntypedStorage) else np.array(lent).tobytes()
