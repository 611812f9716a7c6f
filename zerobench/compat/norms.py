"""``deepspeed.runtime.utils``: norms of tensors, and clipping by them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

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
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    gradients = [p.grad.detach() for p in given if p.grad is not None]
    norm = _norm(gradients, norm_type) / dist.get_world_size()
    dist.all_reduce(norm)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)
    return norm


def get_weight_norm(parameters: Tensor | Iterable[Tensor], norm_type: float = 2, mpu: Any = None) -> float:
    """The norm of parameters as one vector; -1 if it is not finite."""
    refuse_parallelism(mpu=mpu)
    given = [parameters] if isinstance(parameters, nn.Parameter | Tensor) else list(parameters)
    return float(get_global_norm_of_tensors(given, norm_type))


def _norm(tensors: list[Tensor], norm_type: float) -> Tensor:
    norms = [torch.linalg.vector_norm(tensor.float(), norm_type) for tensor in tensors]
    return torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else torch.zeros(())
