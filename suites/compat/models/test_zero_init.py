"""zero.Init: a model is constructed shard by shard, within memory that plain construction exceeds, with its bits."""

from __future__ import annotations

import copy
import ctypes
import os
import resource
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.ranks import Pool
from zerobench.suites.compat import loops

pytestmark = pytest.mark.usefixtures("reference")

_WORLD = 4


class _Model(nn.Module):
    """Parts with a parameter of their own, a tied weight, an integer parameter, and initialisation by apply()."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2))
        self.scale = nn.Parameter(torch.rand(6))
        self.count = nn.Parameter(torch.arange(3), requires_grad=False)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x)
        for block in self.blocks:
            y = block(y) * self.scale
        return self.head(y)  # type: ignore[no-any-return]


def _trained(group: dist.ProcessGroup, stage: int, lean: bool, dtype: str) -> Tensor:
    """The masters after two steps; without zero.Init, ranks but the first construct other values."""
    ds = loops.deepspeed()
    torch.manual_seed(7 if lean or dist.get_rank() == 0 else 8)
    with ds.zero.Init(enabled=lean):
        net = _Model()
    if lean:
        with pytest.raises(RuntimeError, match=r"parameter 'Embedding\.weight' is sharded and not whole here"):
            net.embed.weight.norm()
        with ds.zero.GatheredParameters(net.scale, modifier_rank=1):
            if dist.get_rank() == 1:
                net.scale.data = net.scale.data * 2  # new data, beside the edit in place of the other branch
    else:
        net.scale.data.mul_(2)
    keys = loops.config(stage, train_batch_size=8, gradient_accumulation_steps=1)
    keys |= {} if dtype == "fp32" else {dtype: {"enabled": True}}
    engine, *_ = ds.initialize(model=net, model_parameters=net.parameters(), config=keys)
    for _ in range(2):
        engine.backward(engine(torch.arange(6).view(2, 3) + dist.get_rank()).float().square().mean())
        engine.step()
    after = loops.masters(nn.ParameterList(p for p in net.parameters() if p.requires_grad))
    engine.destroy()
    return after


def _in_bf16(group: dist.ProcessGroup, enabled: bool) -> tuple[list[torch.dtype], torch.dtype]:
    """The dtypes of the model's parameters, and of those of a model after the context."""
    with loops.deepspeed().zero.Init(dtype=torch.bfloat16, enabled=enabled):
        net = _Model()
    return sorted({p.dtype for p in net.parameters()}, key=str), nn.Linear(1, 1).weight.dtype


def test_a_dtype(pool: Pool) -> None:
    """Parameters are constructed in the dtype that is given."""
    expected, plain = ([torch.bfloat16, torch.int64], torch.float32), ([torch.float32, torch.int64], torch.float32)
    assert pool.run(_in_bf16, True, world=_WORLD) == [expected] * _WORLD
    assert pool.run(_in_bf16, False, world=_WORLD) == [plain] * _WORLD


def _edited_in_any_order(group: dist.ProcessGroup, stage: int | None) -> list[list[float]]:
    """The values after rank 0's edits within a context that gets the parameters in another order on each rank.

    Args:
        group: the ranks.
        stage: of an engine that has the parameters; None for parameters of zero.Init alone.
    """
    ds = loops.deepspeed()
    with ds.zero.Init(enabled=stage is None):
        net = nn.ParameterList(nn.Parameter(torch.full((6,), float(number))) for number in range(4))
        net.append(nn.Parameter(torch.full((6,), 4.0), requires_grad=False))
    if stage is not None:
        engine, *_ = ds.initialize(model=net, config=loops.config(stage, train_batch_size=8))
    given = list(net) if dist.get_rank() % 2 else list(reversed(list(net)))
    with ds.zero.GatheredParameters(given, modifier_rank=0):
        seen = [each.tolist() for each in net]
        if dist.get_rank() == 0:
            for each in net:
                each.data.add_(10)
    with ds.zero.GatheredParameters(given):
        seen += [each.tolist() for each in net]
    if stage is not None:
        engine.destroy()
    return seen


@pytest.mark.parametrize("stage", [None, 0, 3])
def test_parameters_in_any_order(pool: Pool, stage: int | None) -> None:
    """GatheredParameters takes a set, whose order differs between ranks; transformers gives one for missing weights."""
    expected = [[value + added] * 6 for added in (0.0, 10.0) for value in range(5)]
    assert pool.run(_edited_in_any_order, stage, world=_WORLD) == [expected] * _WORLD


def _cast(group: dist.ProcessGroup, enabled: bool, how: str) -> tuple[list[torch.dtype], bytes]:
    """The dtypes of a converted model and its masters after a step."""
    ds = loops.deepspeed()
    torch.manual_seed(3)
    with ds.zero.Init(enabled=enabled):
        net = nn.Sequential(nn.Conv2d(2, 4, 2), nn.Flatten(), nn.Linear(4, 3))
    if how == "data":
        for each in net.parameters():
            each.data = each.data.to(torch.bfloat16)
    else:
        getattr(net.to(torch.bfloat16), how)()
    dtypes = [each.dtype for each in net.parameters()]
    keys = loops.config(3 if enabled else 1, train_batch_size=4, gradient_accumulation_steps=1)
    engine, *_ = ds.initialize(model=net, config=keys | {"bf16": {"enabled": True}})
    engine.backward(engine(torch.ones(1, 2, 2, 2, dtype=torch.bfloat16)).float().square().mean())
    engine.step()
    after = loops.masters(net)
    engine.destroy()
    return dtypes, after.numpy().tobytes()


@pytest.mark.parametrize("how", ["data", "eval", "float", "half"])
def test_conversions(pool: Pool, how: str) -> None:
    """``Module.to()``, ``half()`` and new ``data`` round the shards of a model as they round a whole one."""
    sharded, whole = (pool.run(_cast, enabled, how, world=_WORLD) for enabled in (True, False))
    assert sharded == whole
    assert sharded[0][0][0] == {"float": torch.float32, "half": torch.float16}.get(how, torch.bfloat16)


def _decorated(kind: type[nn.Module]) -> type[nn.Module]:
    """The class with a constructor around its own."""
    construct = kind.__init__

    def decorated(module: nn.Module) -> None:
        construct(module)

    setattr(kind, "__init__", decorated)  # noqa: B010
    return kind


def _defined_late(group: dist.ProcessGroup) -> list[bool]:
    """Whether parameters of classes that are defined in the context are sharded, there and after it."""
    with loops.deepspeed().zero.Init():

        class Late(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = nn.Parameter(torch.rand(6))

        @_decorated
        class Decorated(Late):
            def __init__(self) -> None:
                super().__init__()
                self.shift = nn.Parameter(torch.rand(6))

        within = [Late(), Decorated()]
    sharded = [all(hasattr(p, "ds_shape") for p in each.parameters()) for each in (*within, Late(), Decorated())]
    return [*sharded, "__init_subclass__" in vars(nn.Module)]


def test_classes_that_are_defined_late(pool: Pool) -> None:
    """As by a library that loads its models when they are first asked for. After the context all are plain."""
    assert pool.run(_defined_late, world=_WORLD) == [[True, True, False, False, False]] * _WORLD


def _copied(group: dist.ProcessGroup) -> list[bool]:
    """A copied module has parameters of its own with the same values; a bias padded by nothing keeps its values."""
    ds = loops.deepspeed()
    with ds.zero.Init():
        net = nn.Linear(3, 5)
    copied = copy.deepcopy(net)
    bias: Any = net.bias
    bias.data = nn.functional.pad(bias.data, (0, 0), "constant", 0)
    with ds.zero.GatheredParameters(copied.weight, modifier_rank=0):
        copied.weight.data.add_(1)
    with ds.zero.GatheredParameters([*net.parameters(), *copied.parameters()]):
        return [
            torch.equal(copied.weight, net.weight + 1),
            torch.equal(copied.bias, net.bias),
            copied.bias is not net.bias,
            all(p.requires_grad for p in copied.parameters()),
        ]


def test_a_copy(pool: Pool) -> None:
    """As peft copies a module that it trains whole, and as transformers adjusts the bias of a tied layer."""
    assert pool.run(_copied, world=_WORLD) == [[True] * 4] * _WORLD


def _both(group: dist.ProcessGroup, dtype: str) -> list[tuple[Tensor, Tensor]]:
    return [(_trained(group, stage, True, dtype), _trained(group, stage, False, dtype)) for stage in loops.STAGES]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_models_bits(pool: Pool, dtype: str) -> None:
    """At every stage a model that was constructed by shards trains as one that was constructed whole."""
    for stages in pool.run(_both, dtype, world=_WORLD):
        assert all(torch.equal(lean, plain) for lean, plain in stages)


_WIDTH, _BLOCKS = 1024, 48
#: A name of glibc's mallopt.
_M_MMAP_THRESHOLD = -3
_BYTES = _BLOCKS * _WIDTH * _WIDTH * 4


def _large() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_BLOCKS)))


def _data_now() -> int:
    """Bytes of this process's data, as RLIMIT_DATA counts them."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData")]
    return int(line.split()[1]) * 1024


def _fits() -> bool:
    try:
        _large()
    except (RuntimeError, MemoryError):
        return False
    return True


def _limited(group: dist.ProcessGroup, share: float) -> tuple[bool, bool, int]:
    """Whether the model is built within this share of its bytes: plainly; and by zero.Init, with an engine over it."""
    ds = loops.deepspeed()
    zero = {"stage": 3, "stage3_max_live_parameters": 0}
    keys: dict[str, Any] = {"train_batch_size": 4, "zero_optimization": zero}
    before = resource.getrlimit(resource.RLIMIT_DATA)
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 17)  # freed layers return to the system
    dist.all_reduce(torch.zeros(_WIDTH, _WIDTH))  # what the first collective allocates is not the model's
    resource.setrlimit(resource.RLIMIT_DATA, (_data_now() + int(share * _BYTES), before[1]))
    try:
        with ds.zero.Init():
            net = _large()
        engine, *_ = ds.initialize(model=net, config=keys)
        with torch.no_grad():
            right = bool(engine(torch.ones(1, _WIDTH)).isfinite().all())
        engine.destroy()
        del engine, net
        plain = _fits()
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 30)  # as zerobench.ranks has it
    return plain, right, _BYTES


def test_memory() -> None:
    """Four ranks build and evaluate a model within 0.8 of its bytes each, which plain construction exceeds.

    They are new processes: in others, holes between what earlier tests left would count.
    """
    with Pool(_WORLD) as ranks:
        assert ranks.run(_limited, 0.8) == [(False, True, _BYTES)] * _WORLD


def test_a_construction_on_one_rank_ends(pool: Pool) -> None:
    """One rank that constructs alone gets an error that names the others; a later construction on all ranks works."""
    alone, *others = pool.run(_constructing_alone, world=_WORLD)
    assert "rank 1, 2, 3 did not within 0.5 s" in alone
    assert set(others) == {""}


def _constructing_alone(group: dist.ProcessGroup) -> str:
    ds, text = loops.deepspeed(), ""
    if dist.get_rank() == 0:
        with (
            mock.patch.dict(os.environ, {"ZEROBENCH_ZERO_INIT_TIMEOUT": "0.5"}),
            pytest.raises(RuntimeError) as caught,
            ds.zero.Init(),
        ):
            nn.Linear(3, 3)
        text = str(caught.value)
    dist.barrier()
    with ds.zero.Init():
        nn.Linear(3, 3)
    return text
