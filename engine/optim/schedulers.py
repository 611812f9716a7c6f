"""Schedules: a client's scheduler, attached to the engine's parameter groups."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from zerobench.engine.errors import ConfigError
from zerobench.engine.optim.optimizer import ZeroOptimizer


def make_scheduler(given: Any, optimizer: ZeroOptimizer) -> Any:
    """A scheduler of the groups of ``optimizer``: the given one, or the result of the given callable; None for None.

    Raises:
        ConfigError: the scheduler's step needs a metric, or there is no optimizer.
    """
    if given is None:
        return None
    if not optimizer.trains:
        raise ConfigError("lr_scheduler has no optimizer; give config['optimizer'] or pass a torch optimizer")
    made = given if hasattr(given, "step") and not isinstance(given, type) else given(optimizer)
    if isinstance(made, ReduceLROnPlateau):
        raise ConfigError(
            "ReduceLROnPlateau needs a metric at each step, which the engine does not have; make it from the optimizer "
            "that initialize returns and call its step(metric) yourself"
        )
    if made is given:
        _move(made, optimizer)
    return made


def _move(scheduler: Any, optimizer: ZeroOptimizer) -> None:
    """Move it, and the schedulers in it, from the client's optimizer, which the engine does not read."""
    scheduler.optimizer = optimizer
    for part in getattr(scheduler, "_schedulers", ()):
        _move(part, optimizer)
