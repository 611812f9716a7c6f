"""``optimizer.parameter_offload``: the hooks of stage 3, which TRL takes off around generation and puts on again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn


class ParameterOffload:
    """DeepSpeed's owner of stage 3's hooks, without hooks.

    Inside GatheredParameters the engine communicates for no use of a parameter, so that its own hooks can stay.

    Args:
        module: the engine's.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = _Parameters(module)
        self.forward_hooks: list[Any] = []
        self.backward_hooks: list[Any] = []

    def _register_deepspeed_module(self, module: Any) -> None:
        """Do nothing: no hook was taken off."""


class _Parameters:
    """A module with DeepSpeed's name for parameters that it takes from other modules: there are none."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def ds_external_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """None: the engine notices every use."""
        return iter(())
