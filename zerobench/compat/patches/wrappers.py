"""Torch's DistributedDataParallel around an engine, which reduces gradients itself."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from zerobench.engine.registry import has_engine
from zerobench.engine.state.resharded import Resharded


def watch_wrappers() -> None:
    """Make DistributedDataParallel say that it cannot take sharded parameters."""
    construct: Any = nn.parallel.DistributedDataParallel.__init__
    if hasattr(construct, "watched"):
        return

    @functools.wraps(construct)
    def watched(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if any(isinstance(each, Resharded) and has_engine(each) for each in module.parameters()):
            raise RuntimeError(
                "DistributedDataParallel cannot take a model that an engine shards at stage 3; call the engine itself, "
                "which reduces the gradients"
            )
        construct(self, module, *args, **kwargs)

    setattr(watched, "watched", True)  # noqa: B010  # mypy allows no new attribute of a function
    setattr(nn.parallel.DistributedDataParallel, "__init__", watched)  # noqa: B010
