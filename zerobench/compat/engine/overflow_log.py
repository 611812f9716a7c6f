"""DeepSpeed's message for a step that an overflow skips."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from zerobench.compat.log import log_dist, logger
from zerobench.engine import Engine


class OverflowLog:
    """Logs skipped steps on rank 0, at DeepSpeed's levels: INFO with a dynamic loss scale, else WARNING.

    On a GPU the host would have to wait for each step, so that there it logs only if the logger's level is INFO.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The block may take a step."""
        engine = self._engine
        if not logger.isEnabledFor(logging.INFO if engine.device.type != "cpu" else logging.WARNING):
            yield
            return
        steps, scaler = engine.global_steps, engine.scaler
        scale, hysteresis = scaler.scale, scaler.state()["hysteresis"]
        yield
        if engine.global_steps == steps or not engine.optimizer.overflow:
            return
        if not scaler.dynamic:
            text = "Skipping step. Gradients are non-finite, weights were not updated."
            log_dist(f"[deepspeed] OVERFLOW! {text}", ranks=[0], level=logging.WARNING)
        elif engine.ranks.rank == 0:
            after = _halved(scale, engine.loss_scale) if hysteresis == 1 else _kept(scale, hysteresis)
            logger.info("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: %s", after)


def _halved(scale: float, after: float) -> str:
    return f"{int(scale)}, reducing to {int(after)}"


def _kept(scale: float, hysteresis: int) -> str:
    return f"{int(scale)}, but hysteresis is {hysteresis}. Reducing hysteresis to {hysteresis - 1}"
