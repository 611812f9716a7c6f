"""``deepspeed.runtime.utils``: norms of tensors, and clipping by them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zerobench.compat.parallelism import refuse_parallelism


def has_inf_or_nan(x: Tensor) -> Tensor:
    """Whether an element is not finite, as a scalar tensor."""
    return ~torch.isfinite(x._values() if x.is_sparse else x).all()


def is_invalid_grad_norm(norm: Tensor | float) -> bool:
    """Whether a norm is not finite, or negative, which stands for one that was not."""
    return bool(any(not math.isfinite(each) or each < 0 for each in torch.as_tensor(norm).flatten().tolist()))


def get_global_norm(norm_list: Sequence[float]) -> float:
    """The 2-norm of norms; infinite if one is invalid."""
    return math.inf if any(map(is_invalid_grad_norm, norm_list)) else math.sqrt(sum(norm**2.0 for norm in norm_list))


def get_global_norm_of_tensors(
    input_tensors: Sequence[Tensor], norm_type: float = 2, mpu: Any = None, moe_ep_group: Any = None
) -> Tensor:
    """The norm of the tensors as one vector; -1 if it is not finite."""
    refuse_parallelism(mpu=mpu, moe_ep_group=moe_ep_group)
    norm = _norm([tensor.detach() for tensor in input_tensors], norm_type)
    return torch.where(torch.isfinite(norm), norm, -1.0)


def clip_tensors_by_global_norm(
    input_tensors: Sequence[Tensor],
    max_norm: float = 1.0,
    global_norm: Tensor | float | None = None,
    mpu: Any = None,
    eps: float = 1e-6,
) -> Tensor | float:
    """Scale the tensors down to a norm; returns the norm before."""
    if global_norm is None:
        global_norm = get_global_norm_of_tensors(input_tensors, mpu=mpu)
    factor = max_norm / (global_norm + eps)
    if factor < 1:
        for tensor in input_tensors:
            tensor.detach().mul_(factor)
    return global_norm


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2, mpu: Any = None
) -> Tensor:
    """Scale the gradients of parameters that no engine trains; a collective. Returns the mean of the ranks' norms."""
    refuse_parallelism(mpu=mpu)
    gradients = _gradients(parameters)
    norm = _norm(gradients, norm_type) / dist.get_world_size()
    dist.all_reduce(norm)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)
    return norm


def get_weight_norm(parameters: Tensor | Iterable[Tensor], norm_type: float = 2, mpu: Any = None) -> float:
    """The norm of parameters as one vector; -1 if it is not finite."""
    refuse_parallelism(mpu=mpu)
    given = [each.detach() for each in ([parameters] if isinstance(parameters, Tensor) else parameters)]
    if norm_type == math.inf:
        return _finite(max(float(each.abs().max()) for each in given))
    powers = sum(each.float().norm(norm_type) ** norm_type for each in given)
    return _finite(float(powers) ** (1.0 / norm_type))


def get_flattened_grad_norm(
    parameters: Tensor | Iterable[Tensor],
    norm_type: float = 2,
    mpu: Any = None,
    grad_norm_mask: Sequence[Any] | None = None,
) -> float:
    """The norm of the gradients of parameters that no engine trains; -1 if it is not finite.

    Args:
        parameters: those without a gradient do not count.
        norm_type: 2, or another one, or infinity.
        mpu: None; other parallelism is refused.
        grad_norm_mask: for each gradient the ranges of rows, as pairs, that do not count.
    """
    refuse_parallelism(mpu=mpu)
    gradients = _gradients(parameters)
    if norm_type == math.inf:
        return _finite(max(float(gradient.abs().max()) for gradient in gradients))
    counted = _without(gradients, grad_norm_mask or [()] * len(gradients))
    powers = sum(float(each.float().norm(norm_type)) ** norm_type for each in counted)
    return _finite(float(torch.tensor(float(powers))) ** (1.0 / norm_type))


def get_grad_zeros(parameters: Tensor | Iterable[Tensor], mpu: Any = None) -> float:
    """The number of zeros in the gradients of parameters that no engine trains."""
    refuse_parallelism(mpu=mpu)
    return float(sum(each.numel() - int(each.count_nonzero()) for each in _gradients(parameters)))


def combine_grad_norm_groups(norm_groups: Iterable[Tensor | float], norm_type: float = 2) -> Tensor:
    """The norm of norms; infinite if one is invalid."""
    norms = torch.stack([torch.as_tensor(norm, dtype=torch.float32) for norm in norm_groups])
    combined = torch.linalg.vector_norm(norms, norm_type)
    return torch.full_like(combined, math.inf) if is_invalid_grad_norm(norms) else combined


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    given = [parameters] if isinstance(parameters, Tensor) else parameters
    return [each.grad.detach() for each in given if each.grad is not None]


def _without(gradients: list[Tensor], masks: Sequence[Any]) -> Iterator[Tensor]:
    """The gradients, with zeros in the masked ranges."""
    for gradient, ranges in zip(gradients, masks, strict=True):
        kept = gradient.clone() if len(ranges) else gradient
        for start, stop in ranges:
            kept[int(start) : int(stop)] = 0
        yield kept


def _finite(norm: float) -> float:
    return norm if math.isfinite(norm) else -1


def _norm(tensors: list[Tensor], norm_type: float) -> Tensor:
    """The norm of all tensors, in DeepSpeed's arithmetic."""
    if not tensors:
        return torch.zeros(())
    if norm_type == math.inf:
        return torch.stack([tensor.abs().max().float() for tensor in tensors]).max()
    norms = torch.stack([tensor.float().norm(norm_type) for tensor in tensors])
    return norms.pow(norm_type).sum().pow(1.0 / norm_type)
