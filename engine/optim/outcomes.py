"""Outcomes: the results of past steps, which the host reads from the device when they are needed."""

from __future__ import annotations

from zerobench.engine.optim.check import PendingOutcome
from zerobench.engine.optim.loss_scaler import LossScaler


class Outcomes:
    """The numbers that the outcomes of all steps so far decide; to read one, the host first settles the last step.

    The device updates a step by its own check, so :meth:`add` does not wait. The host waits for a check

    - when the engine adds the next step, since the update of a parameter needs the number of its updates before. By
      then the device has that step's forward and backward in its queue, and has made the older check or will make it
      before them. So the queue does not run empty.
    - when the caller, a schedule or a dynamic loss scale needs one of the numbers below.

    Args:
        scaler: is told how each step went.
        parameters: the number of trainable parameters.
    """

    def __init__(self, scaler: LossScaler, parameters: int) -> None:
        self._scaler = scaler
        self._norm: float | None = None
        self._overflow = False
        self._skipped_steps = 0
        self._steps = [0] * parameters
        self._pending: PendingOutcome | None = None

    def add(self, outcome: PendingOutcome) -> None:
        """Take the outcome of the step that has just been issued."""
        self.settle()
        self._pending = outcome

    def settle(self) -> None:
        """Wait for the last step's check, unless that was done."""
        if self._pending is None:
            return
        outcome, self._pending = self._pending.read(), None
        self._norm, self._overflow = outcome.norm, outcome.overflow
        self._skipped_steps += outcome.overflow
        self._scaler.update(outcome.overflow)
        for parameter, active in enumerate(outcome.active):
            self._steps[parameter] += active and not outcome.overflow

    @property
    def scale(self) -> float:
        """The loss scale; a static one needs no outcome."""
        return self.scaler.scale if self._scaler.dynamic else self._scaler.scale

    @property
    def norm(self) -> float | None:
        """The norm of the last step's mean gradient; None before the first step."""
        self.settle()
        return self._norm

    @property
    def overflow(self) -> bool:
        """Whether the last step was skipped."""
        self.settle()
        return self._overflow

    @property
    def scaler(self) -> LossScaler:
        """The loss scaler after the last step."""
        self.settle()
        return self._scaler

    @scaler.setter
    def scaler(self, scaler: LossScaler) -> None:
        self.settle()
        self._scaler = scaler

    @property
    def skipped_steps(self) -> int:
        """The number of skipped steps."""
        self.settle()
        return self._skipped_steps

    @skipped_steps.setter
    def skipped_steps(self, number: int) -> None:
        self.settle()
        self._skipped_steps = number

    @property
    def steps(self) -> list[int]:
        """By trainable parameter, the number of its updates; the caller may change the list."""
        self.settle()
        return self._steps

    @steps.setter
    def steps(self, steps: list[int]) -> None:
        self.settle()
        self._steps = steps
