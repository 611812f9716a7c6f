"""LRRangeTest: the learning rate grows until training diverges."""

from __future__ import annotations

import math
from typing import Any

from zerobench.compat.schedules.schedule import Schedule, positive_integer


class LRRangeTest(Schedule):
    """``min_lr * (1 + step_rate * steps / step_size)``; the steps are whole stairs if ``staircase`` is set."""

    def __init__(
        self,
        optimizer: Any,
        lr_range_test_min_lr: float | list[float] = 1e-3,
        lr_range_test_step_size: int = 2000,
        lr_range_test_step_rate: float = 1.0,
        lr_range_test_staircase: bool = False,
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, last_batch_iteration)
        self.min_lr = self._of_groups(lr_range_test_min_lr, "lr_range_test_min_lr")
        self.step_size = positive_integer(lr_range_test_step_size, "lr_range_test_step_size")
        self.step_rate, self.staircase = lr_range_test_step_rate, lr_range_test_staircase
        if last_batch_iteration == -1:
            self._set(self.min_lr)

    def get_lr(self) -> list[float]:
        interval = float(self.last_batch_iteration + 1) / self.step_size
        increase = 1 + self.step_rate * (math.floor(interval) if self.staircase else interval)
        return [rate * increase for rate in self.min_lr]
