"""Schedules that begin with a warmup: then constant, linear decay, or cosine decay."""

from __future__ import annotations

import logging
import math
from typing import Any

from torch import Tensor

from zerobench.compat.schedules.schedule import Schedule, positive_integer

_log = logging.getLogger("DeepSpeed")


class _Warmup:
    """The share of the warmup that is done: logarithmic or linear in the steps."""

    def __init__(self, steps: int, kind: str) -> None:
        if kind not in ("log", "linear"):
            _log.warning("unknown warmup_type %r; using 'log', as DeepSpeed does", kind)
            kind = "log"
        self.steps, self.kind = max(2, positive_integer(steps, "warmup_num_steps")), kind
        self._inverse_log = 1.0 / math.log(self.steps)

    def share(self, step: int) -> float | None:
        """The share after ``step``; None once the warmup is over."""
        if step >= self.steps:
            return None
        return self._inverse_log * math.log(step + 1) if self.kind == "log" else step / self.steps


class WarmupLR(Schedule):
    """From ``warmup_min_lr`` to ``warmup_max_lr`` in ``warmup_num_steps`` steps, then constant.

    The maximum is by default the learning rate of each group.
    """

    def __init__(
        self,
        optimizer: Any,
        warmup_min_lr: float | list[float] = 0.0,
        warmup_max_lr: float | list[float] | None = None,
        warmup_num_steps: int = 1000,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, last_batch_iteration)
        if warmup_max_lr is None:
            warmup_max_lr = [group["lr"] for group in self.optimizer.param_groups]
        self.min_lrs = self._of_groups(warmup_min_lr, "min_lr")
        self.max_lrs = self._of_groups(warmup_max_lr, "max_lr")
        self.delta_lrs = [high - low for high, low in zip(self.max_lrs, self.min_lrs, strict=True)]
        self.warmup = _Warmup(warmup_num_steps, warmup_type)
        if last_batch_iteration == -1:
            self._set(self.get_lr())

    def get_lr(self) -> list[float]:
        if self.last_batch_iteration < 0:
            return self.min_lrs
        share = self.warmup.share(self.last_batch_iteration)
        gamma = self._after_warmup() if share is None else share
        return [low + (delta * gamma) for low, delta in zip(self.min_lrs, self.delta_lrs, strict=True)]

    def _after_warmup(self) -> float:
        return 1.0


class WarmupDecayLR(WarmupLR):
    """Like WarmupLR, and then a linear decay to ``warmup_min_lr`` at ``total_num_steps``."""

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int,
        warmup_min_lr: float | list[float] = 0.0,
        warmup_max_lr: float | list[float] = 0.001,
        warmup_num_steps: int = 1000,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        self.total_num_steps = total_num_steps
        super().__init__(optimizer, warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type, last_batch_iteration)

    def _after_warmup(self) -> float:
        left = float(self.total_num_steps - self.last_batch_iteration)
        return max(0.0, left / float(max(1.0, self.total_num_steps - self.warmup.steps)))


class WarmupCosineLR(Schedule):
    """The groups' own learning rates times a ratio: a warmup to 1, then half a cosine to ``cos_min_ratio``."""

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int,
        warmup_min_ratio: float = 0.0,
        warmup_num_steps: int = 1000,
        cos_min_ratio: float = 0.0001,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, last_batch_iteration)
        self.total_num_steps, self.cos_min_ratio = total_num_steps, cos_min_ratio
        self.warmup, self.warmup_min_ratio = _Warmup(warmup_num_steps, warmup_type), warmup_min_ratio
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.org_lrs: list[Any] = [rate.clone() if isinstance(rate, Tensor) else rate for rate in rates]
        if last_batch_iteration == -1:
            self._set(self.get_lr())

    def get_lr(self) -> list[float]:
        if self.last_batch_iteration < 0:
            return [0.0 for _ in self.org_lrs]
        ratio = self.get_lr_ratio()
        return [rate * ratio for rate in self.org_lrs]

    def get_lr_ratio(self) -> float:
        """The ratio for ``last_batch_iteration``."""
        if self.last_batch_iteration < 0:
            return 0.0
        share = self.warmup.share(self.last_batch_iteration)
        if share is not None:
            return self.warmup_min_ratio + share * (1.0 - self.warmup_min_ratio)
        decayed = self.last_batch_iteration - self.warmup.steps + 1
        progress = min(1.0, decayed / max(1, self.total_num_steps - self.warmup.steps))
        ratio = (1 + math.cos(math.pi * progress)) / 2
        return max(0.0, self.cos_min_ratio + (1.0 - self.cos_min_ratio) * ratio)
