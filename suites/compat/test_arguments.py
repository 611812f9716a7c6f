"""Helpers of ``deepspeed.utils`` and ``deepspeed.comm`` take DeepSpeed's arguments, and what they return is alike."""

from __future__ import annotations

import importlib
import inspect
import operator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from zerobench.ranks import Pool
from zerobench.suites.compat import loops


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("utils.safe_get_full_fp32_param", ["param"]),
        ("utils.safe_get_full_grad", ["param"]),
        ("utils.safe_get_full_optimizer_state", ["param", "optim_state_key"]),
        ("utils.safe_set_full_fp32_param", ["param", "value"]),
        ("utils.safe_set_full_grad", ["param", "value"]),
        ("utils.safe_set_full_optimizer_state", ["param", "value", "optim_state_key"]),
        ("utils.set_z3_leaf_modules", ["model", "leaf_module_classes", "raise_if_not_found"]),
        ("utils.set_z3_leaf_modules_by_name", ["model", "module_names", "flag", "raise_if_not_found"]),
        ("utils.set_z3_leaf_modules_by_suffix", ["model", "module_name_suffixes", "flag", "raise_if_not_found"]),
        ("comm.allgather_fn", ["output_tensor", "input_tensor", "group", "async_op", "debug"]),
        ("comm.reduce_scatter_fn", ["output_tensor", "tensor", "op", "group", "async_op", "prof", "debug"]),
    ],
)
def test_arguments_have_deepspeeds_names(name: str, arguments: list[str]) -> None:
    """In DeepSpeed's order, so that a script may give them by position and by keyword."""
    assert list(inspect.signature(operator.attrgetter(name)(loops.deepspeed())).parameters) == arguments


def test_leaf_modules() -> None:
    """Classes with those derived from them, names of classes, of modules and their ends; as in DeepSpeed."""
    utils = loops.deepspeed().utils
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Bilinear(2, 2, 2), nn.Linear(2, 2)))
    first, inner, last = model[0], model[1], model.get_submodule("1.1")
    assert utils.set_z3_leaf_modules(model, [nn.Sequential]) == [inner, model]
    assert utils.set_z3_leaf_modules(model, [nn.Module])[0] is first
    assert utils.set_z3_leaf_modules(model, ["torch.nn.modules.linear.Linear"]) == [first, last]
    assert utils.unset_z3_leaf_modules(model, [nn.Module, "Linear"])[-1] is model
    assert utils.get_z3_leaf_modules(model) == []
    assert utils.set_z3_leaf_modules_by_name(model, ["1.1", "x"], raise_if_not_found=False) == ([last], ["x"])
    assert utils.set_z3_leaf_modules_by_suffix(model, ["1", "1.1"]) == ([inner, last], [])
    assert utils.set_z3_leaf_modules_by_suffix(model, ["1"], False) == ([inner, last], [])
    assert utils.get_z3_leaf_modules(model) == []
    with pytest.raises(ValueError, match="the model has no modules of the names"):
        utils.set_z3_leaf_modules_by_name(model, ["0", "x"])
    with pytest.raises(AssertionError, match="classes or their names"):
        utils.set_z3_leaf_modules(model, [first])


def test_a_loss_scaler_of_the_caller() -> None:
    """It is refused with its name, because only the engine scales losses."""
    loops.deepspeed()
    scalers = importlib.import_module("deepspeed.runtime.fp16.loss_scaler")
    for name in ("LossScaler", "DynamicLossScaler"):
        with pytest.raises(NotImplementedError, match=name):
            getattr(scalers, name)(4.0)


def _by_keyword(group: dist.ProcessGroup) -> list[list[float]]:
    """The results of collectives whose tensors have DeepSpeed's names, with the arguments of its logger."""
    comm, given = loops.deepspeed().comm, torch.ones(4)
    whole, part, swapped = torch.zeros(8), torch.zeros(2), torch.zeros(4)
    comm.all_gather_into_tensor(output_tensor=whole, tensor=given, prof=True, group=group)
    comm.reduce_scatter_tensor(output_tensor=part, tensor=given, log_name="part", group=group)
    comm.all_to_all_single(output=swapped, tensor=given, group=group)
    comm.all_reduce(given, prof=False, log_name="sum", debug="here", group=group)
    comm.barrier(log_name="end", group=group)
    return [each.tolist() for each in (whole, part, swapped, given)]


def test_keywords_of_collectives(pool: Pool) -> None:
    """The arguments of the logger change nothing."""
    assert pool.run(_by_keyword, world=2) == [[[1.0] * 8, [2.0] * 2, [1.0] * 4, [2.0] * 4]] * 2
