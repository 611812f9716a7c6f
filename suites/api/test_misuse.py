"""Misuse and failures half-way: one clear error, and no wrong number after it."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import zerobench
from zerobench.engine.config.schema import load
from zerobench.engine.errors import ConfigError, RankMismatch
from zerobench.suites.support.trials import TIME_LIMIT, Trials

_X = torch.ones(1, 4)


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))


def _engine(model: nn.Module, stage: int = 0) -> zerobench.Engine:
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    sgd = {"type": "SGD", "params": {"lr": 0.5}}
    config = {"train_batch_size": 1, "optimizer": sgd, "zero_optimization": zero}
    return zerobench.initialize(model, config)[0]


def _masters(model: nn.Module) -> list[Tensor | None]:
    return [zerobench.safe_get_full_fp32_param(p) for p in model.parameters()]


def _train(trained: zerobench.Engine) -> None:
    trained.backward(trained(_X).sum())
    trained.step()


def _fail(*_: object) -> None:
    raise ArithmeticError("half-way")


@pytest.mark.parametrize("stage", [0, 3])
def test_an_exception_ends_a_backward(stage: int) -> None:
    """Some gradients have arrived by then: the engine trains no more, and its earlier states can still be read."""
    model = _model()
    trained = _engine(model, stage)
    _train(trained)
    before = _masters(model)
    weight = next(model.parameters())
    hook = weight.register_hook(_fail)  # type: ignore[no-untyped-call]  # the last layer's have arrived by then
    with pytest.raises(ArithmeticError, match="half-way"):
        trained.backward(trained(_X).sum())
    hook.remove()
    loss = torch.ones(1, requires_grad=True).sum()
    for call in (lambda: trained(_X), lambda: trained.backward(loss), trained.step):
        with pytest.raises(RuntimeError, match=r"an exception ended backward\(\) of this engine early"):
            call()
    for one, other in zip(before, _masters(model), strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)
    trained.destroy()


def test_an_exception_ends_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some states are new by then, others are not: the engine trains no more."""
    trained = _engine(_model())
    monkeypatch.setattr("zerobench.engine.rules.sgd.sgd_step", _fail)
    with pytest.raises(ArithmeticError, match="half-way"):
        _train(trained)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match=r"an exception ended step\(\) of this engine early"):
        _train(trained)


def test_calls_out_of_turn() -> None:
    """A step without a backward would apply the gradient of the one before; two backwards would lose one."""
    trained = _engine(_model())
    with pytest.raises(RuntimeError, match=r"step\(\) was called without backward\(\)"):
        trained.step()
    _train(trained)
    with pytest.raises(RuntimeError, match=r"step\(\) was called without backward\(\)"):
        trained.step()
    trained.backward(trained(_X).sum())
    with pytest.raises(RuntimeError, match=r"backward\(\) was called twice"):
        trained.backward(trained(_X).sum())


@pytest.mark.parametrize("stage", [0, 3])
def test_a_backward_that_is_not_the_engines(stage: int) -> None:
    """The engine refuses it, before the first step and after it, and the next step uses no part of it."""
    model, twin = _model(), _model()
    trained, other = _engine(model, stage), _engine(twin, stage)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"call engine\.backward\(loss\) instead of loss\.backward\(\)"):
            trained(_X).sum().backward()
        _train(trained)
        _train(other)
    with zerobench.GatheredParameters(model), zerobench.GatheredParameters(twin):
        for one, same in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(one, same)


def test_a_sparse_gradient() -> None:
    """The error names it."""
    trained = _engine(nn.Sequential(nn.Embedding(4, 4, sparse=True)))
    with pytest.raises(RuntimeError, match=r"the gradient of '0\.weight' is sparse"):
        trained.backward(trained(torch.zeros(1, dtype=torch.int64)).sum())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_script_module() -> None:
    """TorchScript reads its parameters unseen: stage 3 names the module, and the other stages train it."""
    for stage in (0, 2, 3):
        model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Linear(4, 1)))
        if stage < 3:
            trained = _engine(model, stage)
            _train(trained)
            trained.destroy()
        else:
            with pytest.raises(ConfigError, match=r"module '1' is a torch.jit.ScriptModule"):
                _engine(model, stage)


class _Slope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        slope: Tensor = torch.func.grad(lambda given: self.layer(given).square().sum())(x)
        return slope


def test_a_function_transform() -> None:
    """torch.func runs among no saved-tensor hooks: the error at stage 3 says which stages have none."""
    trained = _engine(_Slope(), 2)
    _train(trained)
    trained.destroy()
    trained = _engine(_Slope(), 3)
    with pytest.raises(RuntimeError, match="saved tensor hooks") as refused:
        trained(_X)
    assert "or stage 2" in refused.value.__notes__[0]
    trained.destroy()


def test_an_exception_while_parameters_are_edited() -> None:
    """The edit is neither kept nor used."""
    model = _model()
    trained = _engine(model, stage=3)
    before = trained(_X).detach()
    weight = next(model.parameters())
    with pytest.raises(ArithmeticError, match="half-way"), zerobench.GatheredParameters(weight):
        _fail(weight.data.fill_(9.0))
    assert torch.equal(trained(_X), before)


def test_optimizer_states_have_no_checkpoint() -> None:
    """A library may ask for a state dict and throw it away; it is the groups alone, so it is neither saved nor read."""
    _, optimizer, _, _ = zerobench.initialize(
        _model(), {"train_batch_size": 1, "optimizer": {"type": "Adam", "params": {"lr": 0.5}}}
    )
    state = optimizer.state_dict()
    assert [group["lr"] for group in state["param_groups"]] == [0.5]
    refusal = r"cannot save or load it; call engine.save_checkpoint"
    with pytest.raises(RuntimeError, match=refusal):
        torch.save({"optimizer": state}, io.BytesIO())
    with pytest.raises(RuntimeError, match=refusal):
        copy.deepcopy(state)
    with pytest.raises(RuntimeError, match=refusal):
        state["state"]
    with pytest.raises(KeyError):
        state["other"]
    with pytest.raises(RuntimeError, match="the optimizer alone cannot"):
        optimizer.load_state_dict({"state": {}, "param_groups": []})


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_dtypes_that_would_lose_something(dtype: torch.dtype) -> None:
    """Masters are fp32."""
    model = _model()
    model[0].register_parameter("weight", nn.Parameter(torch.ones(4, 4, dtype=dtype)))
    with pytest.raises(zerobench.ConfigError, match=rf"parameter '0\.weight' trains and is {dtype}, not float32"):
        _engine(model)


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("part", ["weight", "running_mean"])
def test_no_values(part: str, stage: int) -> None:
    """A model on the meta device, or partly on it, has nothing to train."""
    model = nn.BatchNorm1d(4)
    if part == "weight":
        model.weight = nn.Parameter(torch.empty(4, device="meta"))
    else:
        model.running_mean = torch.empty(4, device="meta")
    config = {"train_batch_size": 1, "zero_optimization": {"stage": stage}}
    with pytest.raises(zerobench.ConfigError, match=rf"'{part}' is on the meta device and has no values; load"):
        zerobench.initialize(model=model, config=config)


@pytest.mark.parametrize(
    ("layer", "part"), [(nn.LazyLinear(3, bias=False), "weight"), (nn.LazyBatchNorm1d(affine=False), "running_mean")]
)
def test_no_shape(layer: nn.Module, part: str) -> None:
    """A lazy layer gets its shape in the first forward, which is too late."""
    with pytest.raises(zerobench.ConfigError, match=f"'{part}' has no shape yet, .* run one forward of the model"):
        _engine(layer)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ({"type": "Adam", "params": {"torch_adam": True}}, "optimizer.params.torch_adam: "),
        ({"type": "adamw", "params": {"weight_decy": 0.1}}, "optimizer.params.weight_decy: unknown key; did you mean"),
        ({"type": "sgd", "params": {"betas": [0.9, 0.9]}}, "optimizer.params.betas: unknown key (known: lr, momentum,"),
        ({"type": "SGD", "params": {"momentum": -1}}, "optimizer.params.momentum: Input should be greater than or"),
        ({"type": "Adam", "params": {"lr": "auto"}}, "optimizer.params.lr: 'auto' is for a framework to fill in"),
        ({"type": "Adam", "params": {"betas": [1.0, 0.9]}}, "optimizer.params.betas.0: Input should be less than 1, g"),
        ({"type": "Adam", "params": {"betas": [0.9, -0.1]}}, "optimizer.params.betas.1: Input should be greater than"),
        ({"type": "Adam", "params": 3}, "optimizer.params: Input should be a valid dictionary"),
        ({"type": "Lion", "params": {"beta": 2}}, "optimizer.params.beta: unknown key; did you mean 'betas'?"),
        ({"type": "Adagrad", "params": {"lr_decay": -1}}, "optimizer.params.lr_decay: Input should be greater than or"),
        (
            {"type": "Adagrad", "params": {"initial_accumulator_value": 1}},
            "optimizer.params.initial_accumulator_value: DeepSpeed has this key, this engine does not honour it",
        ),
        (
            {"type": "Liom", "params": {"lr": 2}},
            "optimizer.type: no such optimizer; did you mean 'Lion'? (known: Adam,",
        ),
    ],
)
def test_parameters_of_the_optimizer(optimizer: dict[str, Any], message: str) -> None:
    """A fault is one line that begins with the key's whole path."""
    with pytest.raises(zerobench.ConfigError) as refused:
        load({"train_batch_size": 1, "optimizer": optimizer})
    [line] = str(refused.value).splitlines()
    assert line.startswith(message)


def test_every_fault_of_a_configuration() -> None:
    """One line each: keys first, then values."""
    with pytest.raises(zerobench.ConfigError) as refused:
        load(
            {
                "train_batch_size": "auto",
                "gradient_cliping": 1.0,
                "zero_optimization": {"stage": 7, "reduce_scatter": True},
                "optimizer": {"type": "SGD", "params": {"lr": -1.0, "nesterov": True}},
            }
        )
    assert [line.partition(": ")[0] for line in str(refused.value).splitlines()] == [
        "gradient_cliping",
        "zero_optimization.reduce_scatter",
        "optimizer.params.nesterov",
        "train_batch_size",
        "zero_optimization.stage",
        "optimizer.params.lr",
    ]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("decay", r"rank 1 was given another optimizer than .*: ' weight_decay=1\)' instead of ' weight_decay=0\)'"),
        ("groups", r"another model than rank 0: '0\.bias .* trains in group 1' instead of '0\.bias .* group 0'"),
        ("buffer", r"another model than rank 0: 'extra \(2,\) .* buffer' instead of 'extra \(1,\) .* buffer'"),
    ],
)
def test_ranks_were_given_different_things(reference: Trials, what: str, message: str) -> None:
    """Every rank's error is the same: it names the rank and the first difference."""
    for refused in reference.pool.run(_mismatch, what, world=2, timeout=TIME_LIMIT):
        with pytest.raises(RankMismatch, match=message):
            raise RankMismatch(refused)


def _mismatch(group: dist.ProcessGroup, what: str) -> str:
    rank, model = dist.get_rank(group), _model()
    first, *rest = model.parameters()
    groups = [{"params": [first, *rest], "weight_decay": rank if what == "decay" else 0}]
    if what == "groups" and rank:
        groups = [{**groups[0], "params": each} for each in ([first, *rest[1:]], rest[:1])]
    model.register_buffer("extra", torch.zeros(1 + rank if what == "buffer" else 1))
    with pytest.raises(RankMismatch) as refused:
        zerobench.initialize(
            model,
            {"train_batch_size": 2, "optimizer": {"type": "SGD", "params": {}}},
            model_parameters=groups,
            process_group=group,
        )
    return str(refused.value)


def test_each_rank_has_a_directory_of_its_own(reference: Trials, tmp_path: Path) -> None:
    """That is no difference: local drives may be mounted anywhere."""
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    assert reference.pool.run(_train_in_files, tmp_path, world=2, timeout=TIME_LIMIT) == [1, 1]


def _train_in_files(group: dist.ProcessGroup, directory: Path) -> int:
    nvme = {"device": "nvme", "nvme_path": str(directory / str(dist.get_rank(group)))}
    zero = {"stage": 3, "offload_optimizer": nvme, "offload_param": nvme}
    config = {
        "train_batch_size": 2,
        "optimizer": {"type": "SGD", "params": {}},
        "zero_optimization": zero | {"stage3_param_persistence_threshold": 0},
    }
    trained, *_ = zerobench.initialize(_model(), config, process_group=group)
    _train(trained)
    trained.destroy()
    return trained.global_steps
