"""A schedule of learning rates by optimizer step, with DeepSpeed's calls and state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


class Schedule(ABC):
    """Sets the learning rate of each parameter group after each applied step.

    ``last_batch_iteration`` is the number of applied steps minus 1; it is the whole state, so that a checkpoint moves
    between this engine and DeepSpeed.

    Args:
        optimizer: the optimizer, or an object that has it as its attribute ``optimizer``.
        last_batch_iteration: -1 at the start of training.
    """

    def __init__(self, optimizer: Any, last_batch_iteration: int) -> None:
        self.optimizer = _torch_optimizer(optimizer)
        self.last_batch_iteration = last_batch_iteration
        self._last_lr: list[Any] | None = None

    @abstractmethod
    def get_lr(self) -> list[float]:
        """The learning rate of each group for ``last_batch_iteration``."""

    def get_last_lr(self) -> list[Any]:
        """The learning rates set last.

        Raises:
            AssertionError: none has been set; transformers expects DeepSpeed's error and words, and logs a rate of 0.
        """
        if self._last_lr is None:
            raise AssertionError("the schedule has set no learning rate yet: need to call step() first")
        return self._last_lr

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Advance by one step, or to the given one, and set the learning rates."""
        following = self.last_batch_iteration + 1
        self.last_batch_iteration = following if last_batch_iteration is None else last_batch_iteration
        self._set(self.get_lr())

    def state_dict(self) -> dict[str, int]:
        """The state; DeepSpeed's key."""
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, sd: dict[str, int]) -> None:
        """Take over a state; the next ``step()`` sets the learning rates."""
        self.last_batch_iteration = sd["last_batch_iteration"]

    def _set(self, rates: list[Any]) -> None:
        groups = self.optimizer.param_groups
        for group, rate in zip(groups, rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self._last_lr = [group["lr"] for group in groups]

    def _of_groups(self, value: Any, name: str) -> list[Any]:
        """One value for each group, from one value for all or a list."""
        groups = self.optimizer.param_groups
        if not isinstance(value, list | tuple):
            return [value] * len(groups)
        if len(value) != len(groups):
            raise ValueError(f"{name} has {len(value)} values for {len(groups)} parameter groups; give one for each")
        return list(value)


def positive_integer(value: Any, name: str) -> int:
    """``value`` if it is a positive integer.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, int) or value <= 0:
        raise ValueError(f"{name} must be a positive integer, got {value}")
    return value


def _torch_optimizer(optimizer: Any) -> Optimizer:
    found = optimizer if isinstance(optimizer, Optimizer) else getattr(optimizer, "optimizer", None)
    if not isinstance(found, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not a subclass of torch.optim.Optimizer")
    return found
