"""Engines that are wrong under a caller's autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from zerobench.engine.engine import Engine
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import VALUES, Points


class _OtherForward(Mutant):
    """The engine's forward runs in another context."""

    points_at: ClassVar[Points | tuple[Points, ...]] = VALUES

    def forward(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A forward; ``run`` is the right one."""
        raise NotImplementedError

    def sabotage(self) -> None:
        run = Engine.__call__

        class Sabotaged(type(self.engine)):  # type: ignore[misc]
            def __call__(engine, *args: Any, **kwargs: Any) -> Any:
                return self.forward(lambda *a, **k: run(engine, *a, **k), *args, **kwargs)

        self.engine.__class__ = Sabotaged


class TurnsAutocastOff(_OtherForward):
    """Forwards run in the parameters' dtype, as in an engine with a setting of its own."""

    def forward(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self.scenario.device, enabled=False):
            return run(*args, **kwargs)


class CastsEachUse(_OtherForward):
    """Turns off the cache of casts, as sharded views would, so that gradients of several uses are added in fp32."""

    def forward(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        device = self.scenario.device
        with torch.autocast(device, torch.bfloat16, torch.is_autocast_enabled(device), False):
            return run(*args, **kwargs)


class KeepsCasts(Mutant):
    """The casts of the first step's weights stay."""

    points_at = VALUES

    def sabotage(self) -> None:
        torch.autocast_increment_nesting()

    def close(self) -> None:
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        super().close()


AUTOCAST: list[type[Mutant]] = [*_OtherForward.__subclasses__(), KeepsCasts]
