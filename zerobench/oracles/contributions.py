"""The absolute contributions to each gradient, for the bound of their sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from zerobench.subject import State


class Contributions:
    """Adds the absolute values of autograd's additions to each parameter's gradient: ``sums``, in fp64, by name.

    A backward adds once to each gradient, except that a reentrant recomputation runs a backward of its own: a weight
    with several uses then receives each of them by itself, and an engine may round and send each by itself.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.sums: State = {}
        self._before: dict[str, Tensor] | None = None  # the gradients so far, within a backward
        for name, parameter in parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(self._added, name))  # type: ignore[no-untyped-call]

    @contextmanager
    def of_backward(self) -> Iterator[None]:
        """The context of a backward that counts."""
        self._before = {}
        yield
        self._before = None

    def _added(self, name: str, parameter: Tensor) -> None:
        if self._before is None:
            return
        assert parameter.grad is not None
        after = parameter.grad.double().cpu()
        term = (after - self._before[name]).nan_to_num(nan=torch.inf) if name in self._before else after
        self.sums[name] = self.sums.get(name, 0) + term.abs()
        self._before[name] = after
