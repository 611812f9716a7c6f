"""StepHooks: the hooks of optimizers whose step the engine makes in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.optim.optimizer import Optimizer, _global_optimizer_post_hooks, _global_optimizer_pre_hooks


class StepHooks:
    """Runs what is registered by ``register_step_pre_hook()`` and ``register_step_post_hook()``, of an optimizer and of
    all of torch's.

    Those before run before each step at a boundary, those after if the step was applied, when the schedule has stepped.
    A rank runs its own: they are no collective.

    Args:
        returned: the optimizer that ``initialize()`` returns.
        inner: the caller's optimizer, or the one that stands for it.

    Raises:
        RuntimeError: see :meth:`check`.
    """

    def __init__(self, returned: Optimizer, inner: Optimizer) -> None:
        self._inner = inner
        self._optimizers = [inner, returned]
        self.check()

    def check(self) -> None:
        """Refuse a ``step`` that the caller has put on an optimizer, because the engine would not call it.

        Raises:
            RuntimeError: there is one. That of a schedule only counts.
        """
        for optimizer in self._optimizers:
            step = vars(optimizer).get("step")
            if step is not None and not hasattr(step, "_wrapped_by_lr_sched"):
                raise RuntimeError(
                    f"step of the optimizer {type(optimizer).__name__} was replaced by another function, which the "
                    "engine would not call; use register_step_pre_hook() or register_step_post_hook(), or do it before "
                    "or after engine.step()"
                )

    @contextmanager
    def around(self, boundary: bool, applied: Callable[[], bool]) -> Iterator[None]:
        """Around a step of the engine: ``applied`` says after it whether it changed the weights."""
        if boundary:
            self._run("_optimizer_step_pre_hooks", _global_optimizer_pre_hooks)
        yield
        if boundary and applied():
            self._run("_optimizer_step_post_hooks", _global_optimizer_post_hooks)

    def _run(self, name: str, of_all: Mapping[int, Any]) -> None:
        for hook in [*of_all.values()]:
            hook(self._inner, (), {})
        for optimizer in self._optimizers:
            for hook in [*getattr(optimizer, name).values()]:
                hook(optimizer, (), {})
