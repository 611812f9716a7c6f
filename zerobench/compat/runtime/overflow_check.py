"""``deepspeed.runtime.utils.CheckOverflow``: whether gradients that no engine reduces are finite."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zerobench.compat.accelerator.accelerator import get_accelerator
from zerobench.compat.parallelism import refuse_parallelism
from zerobench.compat.runtime.norms import has_inf_or_nan, is_invalid_grad_norm


class CheckOverflow:
    """Looks for gradients that are not finite. An engine's parameters have none: it takes each as it arrives.

    Args:
        param_groups: lists of parameters, which :meth:`check` reads.
        mpu: None; other parallelism is refused.
        zero_reduce_scatter: whether the ranks agree on :meth:`has_overflow`, which is then a collective.
        deepspeed: an engine; the ranks agree, too, if its ``enable_backward_allreduce`` is False.
    """

    def __init__(
        self,
        param_groups: Iterable[Iterable[Tensor]] | None = None,
        mpu: Any = None,
        zero_reduce_scatter: bool = False,
        deepspeed: Any = None,
    ) -> None:
        refuse_parallelism(mpu=mpu)
        self.mpu, self.zero_reduce_scatter, self.deepspeed = None, zero_reduce_scatter, deepspeed
        self.has_moe_params = False
        self.params = [each for group in param_groups for each in group] if param_groups else None

    def check(self, param_groups: Iterable[Iterable[Tensor]] | None = None) -> bool:
        """Whether a gradient of the groups, or of those given at first, is not finite.

        Raises:
            ValueError: no groups are given, neither now nor at first.
        """
        if param_groups is None and self.params is None:
            raise ValueError("check() has no parameters; give param_groups here or to CheckOverflow()")
        given = (self.params or []) if param_groups is None else [each for group in param_groups for each in group]
        return self.has_overflow(given)

    def check_using_norm(self, norm_group: Iterable[Tensor | float], reduce_overflow: bool = True) -> bool:
        """Whether a norm is invalid, on any rank if ``reduce_overflow`` is set; a collective then."""
        found = any(map(is_invalid_grad_norm, norm_group))
        return _on_any_rank(found) if reduce_overflow else found

    def has_overflow(self, params: Iterable[Tensor], has_moe_params: bool | None = None) -> bool:
        """Whether a gradient of these parameters is not finite."""
        found = self.has_overflow_serial(params)
        apart = self.deepspeed is not None and self.deepspeed.enable_backward_allreduce is False
        return _on_any_rank(found) if self.zero_reduce_scatter or apart else found

    def has_overflow_serial(self, params: Iterable[Tensor]) -> bool:
        """:meth:`has_overflow` on this rank alone."""
        return any(bool(has_inf_or_nan(each.grad)) for each in params if each.grad is not None)


def _on_any_rank(found: bool) -> bool:
    """Whether it is so on any rank; a collective."""
    flag = torch.tensor(float(found), device=get_accelerator().current_device_name())
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)
