"""GradientCheck: the grad norm and overflow check of a step, on the device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zerobench.engine.ops.clipping import clip_factors


@dataclass(frozen=True)
class GradientCheck:
    """The check of one step, the same bits on all ranks except ``mine``. The host has not waited for its tensors."""

    total: Tensor  # fp64 [1]: the sum of squares of the summed gradients
    overflow: Tensor  # bool [1]: a gradient on any rank is not finite
    active: Tensor  # bool, by trainable parameter: at least one leaf has a gradient for it
    mine: list[bool]  # the same of this rank's leaves alone
    divisor: float  # the leaves times the loss scale

    def factors(self, clip: float) -> Tensor:
        """By trainable parameter, the factor of its gradient; NaN if it is not updated. ``clip`` 0 does not clip."""
        return clip_factors(self.total, self.overflow, self.active, clip, self.divisor)


@dataclass(frozen=True)
class Outcome:
    """The values of a check, on the host."""

    norm: float  # of the mean gradient, before clipping
    overflow: bool
    active: list[bool]


class PendingOutcome:
    """A check on its way to the host; on CUDA the copy starts at once, behind the check and before the update."""

    def __init__(self, check: GradientCheck) -> None:
        parts = check.total, check.overflow, check.active
        self._outcome: Outcome | None = None
        packed = torch.cat([part.view(torch.uint8) for part in parts])
        self._divisor, self._copied, self._values = check.divisor, None, packed
        if packed.device.type == "cuda":
            self._values = torch.empty(packed.shape, dtype=torch.uint8, pin_memory=True)
            self._values.copy_(packed, non_blocking=True)
            self._copied = torch.cuda.current_stream(packed.device).record_event()

    def read(self) -> Outcome:
        """The outcome; the first call makes the host wait until the device has made the check."""
        if self._outcome is None:
            self._outcome = self._fetch()
        return self._outcome

    def _fetch(self) -> Outcome:
        if self._copied is not None:
            self._copied.synchronize()
        total = float(self._values[:8].view(torch.float64))
        norm = math.sqrt(total) / self._divisor if total >= 0 else math.nan
        overflow, *active = self._values[8:].bool().tolist()
        return Outcome(norm, overflow, active)
