"""The backward of one micro-step, and the order in which its gradients are reduced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from zerobench.engine.stage3.passes import Reductions


@dataclass
class Backward:
    """The backward of one micro-step, from its beginning until all its gradients have been reduced.

    Units are counted in the order of reduction. The first ``finished`` units have all their gradients. The first
    ``ready`` of them form whole batches, and the first ``launched`` of those are being reduced.
    """

    first: bool  # micro-step of its step
    last: bool
    missing: list[int]  # by unit, the number of gradients that are still to come
    finished: int = 0
    ready: int = 0
    launched: int = 0
    task: int | None = None  # autograd's number for the outermost backward, once it has begun


class Coordinator(Protocol):
    """Decides when ready units are launched; in the Unsharder the ranks agree on it."""

    def begin_reductions(self, reductions: Reductions) -> None:
        """A backward begins."""

    def offer(self) -> None:
        """Another unit is ready."""

    def finish_reductions(self) -> None:
        """All units are ready; returns when all have been launched. A collective."""


class AtOnce:
    """The Coordinator if parameters are not sharded: it launches each unit as soon as it is ready, in one order on all
    ranks."""

    def begin_reductions(self, reductions: Reductions) -> None:
        """A backward begins."""
        self._reductions = reductions

    def offer(self) -> None:
        """Launch it."""
        self._reductions.launch(self._reductions.ready)

    def finish_reductions(self) -> None:
        """Launch the remaining units, and forget the backward."""
        self.offer()
        del self._reductions


def may_nest(loss: Tensor) -> bool:
    """Whether another backward may run within this one: only if the graph has a function written in Python, or has no
    parameter, so that hooks make the gradients, as of a loss that caches those of its embeddings."""
    seen: set[Any] = set()
    trains = False
    ahead: list[Any] = [loss.grad_fn]
    while ahead:
        node = ahead.pop()
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        if node is not None and node not in seen:
            seen.add(node)
            ahead += [before for before, _ in node.next_functions]
            trains = trains or isinstance(getattr(node, "variable", None), nn.Parameter)
    return not trains
