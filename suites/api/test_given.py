"""The engine takes a model as it is: every dtype and every stride, and no leftover gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import zerobench
from zerobench.suites.support.trials import TIME_LIMIT, Trials

_X = torch.ones(1, 4)


def _engine(
    model: nn.Module, stage: int = 0, group: dist.ProcessGroup | None = None, **sections: Any
) -> zerobench.Engine:
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    sgd = {"type": "SGD", "params": {"lr": 0.5}}
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": sgd, "zero_optimization": zero, **sections}
    return zerobench.initialize(model, config, process_group=group)[0]


def _linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 1)


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize(
    "values",
    [torch.tensor([2**40 + 1, -1]), torch.tensor([True, False]), torch.tensor([1 + 2j])],
    ids=["int64", "bool", "complex64"],
)
def test_frozen_parameters_that_are_no_weights(stage: int, values: Tensor) -> None:
    """They keep every bit, even if weights are in bf16."""
    model, table = _linear(), nn.Parameter(values.clone(), requires_grad=False)
    model.register_parameter("table", table)
    _engine(model, stage, bf16={"enabled": True})
    dtype = table.dtype  # a name of its own: if this fails, the table may have no memory to show
    assert dtype == values.dtype
    assert torch.equal(table, values)


@pytest.mark.parametrize("stage", [0, 3])
def test_gradients_from_before(stage: int) -> None:
    """No step of the engine's uses them."""
    model, fresh = _linear(), _linear()
    model(_X).sum().backward()
    engines = [_engine(each, stage) for each in (model, fresh)]
    for trained in engines:
        trained.backward(trained(_X).sum())
        trained.step()
    with zerobench.GatheredParameters(model), zerobench.GatheredParameters(fresh):
        assert torch.equal(model.weight, fresh.weight)


@pytest.mark.parametrize("stage", [0, 3])
def test_loading_within_gathered_parameters(stage: int) -> None:
    """The masters take the loaded values, rounded to the training dtype."""
    model, saved = _linear(), _linear()
    nn.init.normal_(saved.weight)
    trained = _engine(model, stage, bf16={"enabled": True})
    with zerobench.GatheredParameters(model):
        model.load_state_dict(saved.state_dict())
    master = zerobench.safe_get_full_fp32_param(next(model.parameters()))
    assert master is not None
    assert torch.equal(master, saved.weight.bfloat16().float())
    trained.destroy()


class _Strided(nn.Module):
    """Holds ``rank`` and more in buffers and frozen parameters of every stride."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.memory = torch.arange(16.0) + 100 * rank
        self.register_buffer("slice", self.memory[:8:2])
        self.register_buffer("transposed", self.memory.view(4, 4).clone().t())
        self.register_buffer("expanded", torch.full((1,), float(rank)).expand(1000))
        self.register_buffer("complex", torch.full((2,), rank + 1j))
        self.register_buffer("scalar", torch.tensor(rank))
        self.frozen = nn.Parameter(torch.full((2, 3), float(rank)).t(), requires_grad=False)
        self.wide = nn.Parameter(torch.full((1,), float(rank)).expand(1000), requires_grad=False)

    def rest(self) -> dict[str, Tensor]:
        """Buffers and frozen parameters."""
        rest = {name: value.clone() for name, value in self.state_dict().items() if not name.startswith("linear")}
        return {**rest, "memory": self.memory.clone()}


def test_strides_of_what_is_in_no_unit(reference: Trials) -> None:
    """Rank 0's values reach every rank, and a slice's neighbours in memory stay each rank's own."""
    expected = _Strided(0).rest()
    found = reference.pool.run(_rest_of_rank, world=2, timeout=TIME_LIMIT)
    for rank, rest in enumerate(found):
        memory = rest.pop("memory")
        assert torch.equal(memory[1::2], torch.arange(16.0)[1::2] + 100 * rank)
        for name, value in rest.items():
            assert torch.equal(value, expected[name]), f"{name} on rank {rank}"


def _rest_of_rank(group: dist.ProcessGroup) -> dict[str, Tensor]:
    model = _Strided(dist.get_rank(group))
    _engine(model, group=group)
    return model.rest()


def test_edits_of_what_is_in_no_unit(reference: Trials) -> None:
    """With a modifier rank its values persist on every rank, those of frozen parameters too."""
    for frozen in reference.pool.run(_edited, world=2, timeout=TIME_LIMIT):
        assert torch.equal(frozen, torch.full((3, 2), 5.0))


def _edited(group: dist.ProcessGroup) -> Tensor:
    rank = dist.get_rank(group)
    model = _Strided(rank)
    trained = _engine(model, group=group)
    with zerobench.GatheredParameters(model, modifier_rank=1):
        if rank == 1:
            model.frozen.data.fill_(5.0)
    trained.destroy()
    return model.frozen.detach().clone()


def test_its_gpu_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its GPU is current while an engine is built, because objects that are not tensors travel through it."""
    current = [torch.device("cuda", 0)]

    @contextmanager
    def made_current(device: torch.device) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    seen = []
    monkeypatch.setattr("torch.cuda.device", made_current)
    monkeypatch.setattr("zerobench.engine.construction._device", lambda *_: torch.device("cuda", 1))
    monkeypatch.setattr("zerobench.engine.construction.Engine", lambda *_: seen.append(current[-1]))
    _engine(_linear())
    assert seen == [torch.device("cuda", 1)]
    assert current == [torch.device("cuda", 0)]
