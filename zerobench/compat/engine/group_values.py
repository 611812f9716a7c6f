"""Values of the optimizer's groups, by the names of DeepSpeed's engine."""

from __future__ import annotations

from typing import Any, Protocol

from zerobench.engine import Engine


class _Grouped(Protocol):
    """The attributes of the engine that the mixed-in methods use."""

    _engine: Engine

    def optimizer_name(self) -> str | None: ...

    def _of_groups(self, name: str) -> list[Any]: ...


class GroupValues:
    """One value for each group."""

    def get_lr(self: _Grouped) -> list[float]:
        """The learning rate of each group."""
        return self._of_groups("lr")

    def get_mom(self: _Grouped) -> list[Any]:
        """The momentum of each group for SGD and RMSprop, else its betas; 0 for a group without, as in DeepSpeed."""
        return self._of_groups("momentum" if self.optimizer_name() in ("SGD", "RMSprop") else "betas")

    def get_type(self: _Grouped) -> list[Any]:
        """The ``type`` of each group, if the caller has set one."""
        return self._of_groups("type")

    def _of_groups(self: _Grouped, name: str) -> list[Any]:
        return [group.get(name, 0.0) for group in self._engine.optimizer.param_groups]
