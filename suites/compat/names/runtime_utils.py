"""``deepspeed.runtime.utils`` of a package: its functions' results for numbers that a test draws."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Rows = list[list[float]]


def bounds(weights: list[float], parts: int) -> list[list[int]]:
    """The bounds of balanced and of uniform parts."""
    utils = importlib.import_module("deepspeed.runtime.utils")
    found = utils.partition_balanced(weights, parts), utils.partition_uniform(len(weights), parts)
    return [[int(each) for each in bounds] for bounds in found]


def norms(rows: Rows, norm_type: float) -> dict[str, str]:
    """Norms of gradients and tensors, and the results of overflow checks, each as text with all digits."""
    utils = importlib.import_module("deepspeed.runtime.utils")
    tensors, parameters = [torch.tensor(row) for row in rows], _with_gradients(rows)
    check = utils.CheckOverflow([parameters])
    calls: dict[str, Callable[[], Any]] = {
        "flattened": lambda: utils.get_flattened_grad_norm(parameters, norm_type),
        "masked": lambda: utils.get_flattened_grad_norm(parameters, norm_type, grad_norm_mask=_masks(rows)),
        "weights": lambda: utils.get_weight_norm(tensors, norm_type),
        "tensors": lambda: utils.get_global_norm_of_tensors(tensors, norm_type),
        "combined": lambda: utils.combine_grad_norm_groups([row[0] for row in rows], norm_type),
        "global": lambda: utils.get_global_norm([row[0] for row in rows]),
        "zeros": lambda: utils.get_grad_zeros(parameters),
        "overflow": check.check,
        "serial": lambda: check.has_overflow_serial(parameters[:1]),
        "of norms": lambda: check.check_using_norm([row[0] for row in rows], reduce_overflow=False),
        "clipped": lambda: _clipped(utils, tensors),
        "aligned": lambda: [each.tolist() for each in utils.align_dense_tensors(tensors, 4)],
    }
    return {name: _text(call()) for name, call in calls.items()}


def _with_gradients(rows: Rows) -> list[Tensor]:
    """A parameter for each row, which is its gradient, and one that has none."""
    parameters: list[Tensor] = [torch.nn.Parameter(torch.zeros(len(row))) for row in [*rows, [0.0]]]
    for parameter, row in zip(parameters, rows, strict=False):
        parameter.grad = torch.tensor(row)
    return parameters


def _masks(rows: Rows) -> list[Tensor]:
    """The first element of each gradient that has several."""
    return [torch.tensor([[0, 1]] if len(row) > 1 else []).long() for row in rows]


def _clipped(utils: Any, tensors: list[Tensor]) -> list[Any]:
    own = [tensor.clone() for tensor in tensors]
    before = utils.clip_tensors_by_global_norm(own, 0.5)
    return [float(before), *(each.tolist() for each in own)]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return str([_text(each) for each in value])
    number = float(value)
    return "nan" if math.isnan(number) else number.hex()
