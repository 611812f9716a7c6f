"""Every method of torch.Tensor on a stage-3 parameter: on a released one an error with its name or the plain answer, on
a gathered or a persistent one the plain tensor's answer."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import zerobench
from zerobench.ranks import Pool

pytestmark = pytest.mark.usefixtures("reference")

#: Methods that draw numbers, move the tensor to other devices or processes, or belong to Python's own protocol; and
#: set_, which torch lets no class see.
_LEFT_OUT = frozenset(
    [
        "set_",
        "bernoulli",
        "bernoulli_",
        "cauchy_",
        "cuda",
        "exponential_",
        "geometric_",
        "hpu",
        "ipu",
        "log_normal_",
        "mtia",
        "multinomial",
        "normal_",
        "pin_memory",
        "random_",
        "share_memory_",
        "uniform_",
        "xpu",
        "xla",
        "rand_like",
        "to_mkldnn",
        "record_stream",
        "__class__",
        "__init_subclass__",
        "__new__",
        "__subclasshook__",
        "__sizeof__",
        "__hash__",
        "__init__",
        "__repr__",
        "__str__",
        "__format__",
        "__reduce__",
        "__reduce_ex__",
        "__dir__",
        "__getattribute__",
        "__setattr__",
        "__delattr__",
        "__torch_function__",
        "__torch_dispatch__",
        "_make_subclass",
        "_make_wrapper_subclass",
        "_make_dtensor",
        "module_load",
        "__array_priority__",
        "apply_",
        "map_",
        "map2_",
        "backward",
        "register_hook",
        "register_post_accumulate_grad_hook",
        "empty_like",
        "new_empty",
        "new_empty_strided",
    ]
)
_NAMED = "'0.weight' is sharded and not whole here"
#: Arguments that are tried in turn, until the plain tensor takes one of them.
_ARGUMENTS: tuple[tuple[Any, ...], ...] = ((), (0,), (torch.ones(4, 4),), (0, 1), (2.0,), ((4, 4),), (torch.float64,))


def _methods() -> list[str]:
    """The public and the operator methods, those that are left out excluded."""
    names = [name for name in dir(Tensor) if not name.startswith("_") or name.endswith("__")]
    found = [name for name in names if name not in _LEFT_OUT and callable(inspect.getattr_static(Tensor, name))]
    return [name for name in found if callable(getattr(torch.ones(1), name, None))]


def _plain() -> Tensor:
    return torch.arange(1.0, 17.0).view(4, 4)


def _answer(tensor: Tensor, name: str, arguments: tuple[Any, ...]) -> Any:
    """The result in a form that can be compared, or the error."""
    arguments = tuple(each.clone() if isinstance(each, Tensor) else each for each in arguments)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _form(getattr(tensor, name)(*arguments))
    except Exception as error:  # noqa: BLE001  # any error is an answer
        return error


def _form(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (str(value.dtype), tuple(value.shape), value.detach().flatten().tolist())
    if isinstance(value, list | tuple):
        return [_form(each) for each in value]
    return value if isinstance(value, bool | int | float | str | torch.dtype | torch.device | None) else type(value)


def _tried() -> list[tuple[str, tuple[Any, ...]]]:
    """Each method with the first arguments that the plain tensor takes."""
    found = []
    for name in _methods():
        fitting = [each for each in _ARGUMENTS if not isinstance(_answer(_plain(), name, each), Exception)]
        found += [(name, fitting[0])] if fitting else []
    return found


def _engine(group: dist.ProcessGroup, persistence: int) -> Any:
    first = nn.Linear(4, 4, bias=False)
    first.weight.data.copy_(_plain())
    model = nn.Sequential(first, nn.Linear(4, 4, bias=False))
    zero = {"stage": 3, "chunk_size": 32, "stage3_param_persistence_threshold": persistence}
    sgd = {"type": "SGD", "params": {"lr": 0.5}}
    config = {"train_batch_size": 1, "optimizer": sgd, "zero_optimization": zero}
    return zerobench.initialize(model, config, process_group=group)[0]


def _released(group: dist.ProcessGroup) -> tuple[int, list[str]]:
    """The number of methods, and those whose answer is neither the plain one nor an error with the name."""
    engine, wrong = _engine(group, 0), []
    weight = engine.module[0].weight
    for name, arguments in (tried := _tried()):
        answer, plain = _answer(weight, name, arguments), _answer(nn.Parameter(_plain()), name, arguments)
        if not (isinstance(answer, Exception) and _NAMED in str(answer)) and repr(answer) != repr(plain):
            wrong.append(f"{name}{arguments}: {answer!r}"[:200])
    after = zerobench.safe_get_full_fp32_param(weight)
    assert after is not None
    assert torch.equal(after, _plain())
    engine.destroy()
    return len(tried), wrong


def _whole(group: dist.ProcessGroup, persistence: int) -> tuple[int, list[str]]:
    """The same inside GatheredParameters or of a persistent parameter; each method begins with the plain values."""
    engine, wrong = _engine(group, persistence), []
    weight = engine.module[0].weight
    with zerobench.GatheredParameters(list(engine.module.parameters())):
        for name, arguments in (tried := [each for each in _tried() if each[0] not in _CHANGE_THE_TENSOR]):
            with torch.no_grad():
                weight.data.copy_(_plain())
            answer, plain = _answer(weight, name, arguments), _answer(nn.Parameter(_plain()), name, arguments)
            same = type(answer) is type(plain) if isinstance(plain, Exception) else repr(answer) == repr(plain)
            if not same:
                wrong.append(f"{name}{arguments}: {answer!r} instead of {plain!r}"[:300])
    engine.destroy()
    return len(tried), wrong


#: They give a tensor another shape or memory, so that the next method would not see the parameter.
_CHANGE_THE_TENSOR = frozenset(
    [
        "set_",
        "resize_",
        "resize_as_",
        "t_",
        "transpose_",
        "swapaxes_",
        "swapdims_",
        "squeeze_",
        "unsqueeze_",
        "as_strided_",
        "detach_",
        "requires_grad_",
        "rename_",
        "align_to",
        "const_data_ptr",
        "data_ptr",
        "untyped_storage",
        "storage",
        "storage_type",
        "__setstate__",
        "__deepcopy__",
    ]
)


_USES = ["released", "gathered", "persistent"]


@pytest.mark.rotating
@pytest.mark.parametrize(("use", "given"), [(_released, ()), (_whole, (0,)), (_whole, (1000,))], ids=_USES)
def test_every_method(pool: Pool, use: Callable[..., Any], given: tuple[int, ...]) -> None:
    """At least 200 methods; no crash, no plausible wrong number."""
    ((methods, wrong),) = pool.run(use, *given, world=1)
    assert methods >= 200
    assert wrong == []
