"""OneCycle: one cycle of the learning rate, with the momentum opposite to it, and then a decay."""

from __future__ import annotations

import logging
import math
from typing import Any

from zerobench.compat.schedules.schedule import Schedule

_log = logging.getLogger("DeepSpeed")


class _Cycle:
    """The height of the cycle, from 0 to 1 and back to 0, by step; in stairs if a half has a stair count."""

    def __init__(self, first: float, second: float, first_stairs: int, second_stairs: int) -> None:
        if first <= 0:
            raise ValueError(f"cycle_first_step_size must be positive, got {first}")
        if second < 0:
            raise ValueError(f"cycle_second_step_size must be non-negative, got {second}")
        self.first, self.second, self.total = first, second, first + second
        self.first_stairs, self.second_stairs = first_stairs, second_stairs
        self.ratio = first / self.total

    def height(self, step: int) -> float:
        cycle = math.floor(1 + step / self.total)
        x = 1.0 + step / self.total - cycle
        rising = x <= self.ratio
        stairs = self.first_stairs if rising else self.second_stairs
        if stairs > 0:
            return self._stair(step, stairs)
        return x / self.ratio if rising else (x - 1) / (self.ratio - 1)

    def _stair(self, step: int, stairs: int) -> float:
        within = step % self.total
        if within <= self.first:
            position = within * stairs / self.first
        else:
            position = (self.total - within) * stairs / self.second
        return math.floor(position) / stairs


class OneCycle(Schedule):
    """From ``cycle_min_lr`` to ``cycle_max_lr`` and back, then a decay of ``decay_lr_rate`` per ``decay_step_size``.

    Adam's first beta moves from ``cycle_max_mom`` to ``cycle_min_mom`` and back if ``cycle_momentum`` is set.
    """

    def __init__(
        self,
        optimizer: Any,
        cycle_min_lr: float | list[float],
        cycle_max_lr: float | list[float],
        decay_lr_rate: float = 0.0,
        cycle_first_step_size: float = 2000,
        cycle_second_step_size: float | None = None,
        cycle_first_stair_count: int = 0,
        cycle_second_stair_count: int | None = None,
        decay_step_size: float = 0,
        cycle_momentum: bool = True,
        cycle_min_mom: float | list[float] = 0.8,
        cycle_max_mom: float | list[float] = 0.9,
        decay_mom_rate: float = 0.0,
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, last_batch_iteration)
        second = cycle_first_step_size if cycle_second_step_size is None else cycle_second_step_size
        stairs = cycle_first_stair_count if cycle_second_stair_count is None else cycle_second_stair_count
        self.cycle = _Cycle(float(cycle_first_step_size), float(second), cycle_first_stair_count, stairs)
        self.decay_step_size, self.decay_lr_rate, self.decay_mom_rate = decay_step_size, decay_lr_rate, decay_mom_rate
        self.min_lrs = self._of_groups(cycle_min_lr, "cycle_min_lr")
        self.max_lrs = self._of_groups(cycle_max_lr, "cycle_max_lr")
        self.cycle_momentum = cycle_momentum and self._has_betas()
        self.min_moms = [(each, 0.99) for each in self._of_groups(cycle_min_mom, "cycle_min_mom")]
        self.max_moms = [(each, 0.99) for each in self._of_groups(cycle_max_mom, "cycle_max_mom")]
        if last_batch_iteration == -1:
            self._begin()

    def _has_betas(self) -> bool:
        found = "betas" in self.optimizer.defaults
        if not found:
            name = type(self.optimizer).__name__
            _log.warning("cycle_momentum is disabled because optimizer %s has no betas", name)
        return found

    def _begin(self) -> None:
        self._set(self.min_lrs)
        self._last_lr = None  # DeepSpeed's get_last_lr() needs a step() first
        if self.cycle_momentum:
            self._set_momentum(self.min_moms)

    def _set_momentum(self, momentums: list[tuple[float, float]]) -> None:
        for group, betas in zip(self.optimizer.param_groups, momentums, strict=True):
            group["betas"] = betas

    @property
    def _decayed(self) -> float | None:
        """The steps of the decay; None in the cycle."""
        if self.last_batch_iteration < self.cycle.total:
            return None
        return self.last_batch_iteration - self.cycle.total + 1

    def _decay(self, rate: float, steps: float) -> float:
        """The factor of the decay; 1 without one."""
        if math.isclose(self.decay_step_size, 0) or math.isclose(rate, 0):
            return 1
        return 1 + rate * (steps / self.decay_step_size)

    def get_lr(self) -> list[float]:
        if self._decayed is not None:
            decay = self._decay(self.decay_lr_rate, self._decayed)
            return [low / decay for low in self.min_lrs]
        height = self.cycle.height(self.last_batch_iteration + 1)
        pairs = zip(self.min_lrs, self.max_lrs, strict=True)
        return [low + (high - low) * height for low, high in pairs]

    def get_mom(self) -> list[tuple[float, float]] | None:
        """Adam's betas for each group; None if the momentum does not cycle."""
        if not self.cycle_momentum:
            return None
        if self._decayed is not None:
            decay = self._decay(self.decay_mom_rate, self._decayed)
            return [(first * decay, second) for first, second in self.max_moms]
        height = self.cycle.height(self.last_batch_iteration + 1)
        pairs = zip(self.min_moms, self.max_moms, strict=True)
        return [(high[0] - (high[0] - low[0]) * height, low[1]) for low, high in pairs]

    def step(self, last_batch_iteration: int | None = None) -> None:
        super().step(last_batch_iteration)
        momentums = self.get_mom()
        if momentums is not None:
            self._set_momentum(momentums)
