"""The backward of one micro-step, and the order in which its gradients are reduced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from zerobench.engine.stage3.passes import Reductions


@dataclass
class Backward:
    """The backward of one micro-step: born when it begins, gone when all its gradients have been reduced.

    Units count in the order of reduction: the first ``finished`` have all their gradients, ``ready`` of these are whole
    batches, and ``launched`` of these are under way.
    """

    first: bool  # micro-step of its step
    last: bool
    missing: list[int]  # by unit, the gradients that are still to come
    finished: int = 0
    ready: int = 0
    launched: int = 0
    task: int | None = None  # autograd's, once the outermost backward has begun


class Coordinator(Protocol):
    """Says when ready units are launched; the Unsharder does so by agreement between the ranks."""

    def begin_reductions(self, reductions: Reductions) -> None:
        """A backward begins."""

    def offer(self) -> None:
        """Another unit is ready."""

    def finish_reductions(self) -> None:
        """All units are ready; returns when all have been launched. A collective."""


class AtOnce:
    """The Coordinator of parameters that are whole: a unit is launched as soon as it is ready, in the same order on
    all ranks."""

    def begin_reductions(self, reductions: Reductions) -> None:
        """A backward begins."""
        self._reductions = reductions

    def offer(self) -> None:
        """Launch it."""
        self._reductions.launch(self._reductions.ready)

    def finish_reductions(self) -> None:
        """Launch the rest, and forget the backward."""
        self.offer()
        del self._reductions


def may_nest(loss: Tensor) -> bool:
    """Whether a backward may run within this one: only a function that is written in Python could do that."""
    seen: set[Any] = set()
    ahead: list[Any] = [loss.grad_fn]
    while ahead:
        node = ahead.pop()
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        if node is not None and node not in seen:
            seen.add(node)
            ahead += [before for before, _ in node.next_functions]
    return False
