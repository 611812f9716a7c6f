"""The forwards of a micro-step: one, two for one backward, or one beside it whose loss nobody uses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from zerobench.scenario import Scenario
from zerobench.subject import Batch


def loss_of(scenario: Scenario, module: Callable[..., Any], batch: Batch, caches: bool = True) -> Tensor:
    """The mean loss of a leaf, for one backward; ``module(**batch)`` is that of one forward.

    The Scenario's ``forwards`` decides which forwards compute it:

    - ``one``: a single forward.
    - ``two``: a second forward on the mirrored batch; the loss is the mean of both, as in contrastive learning.
    - ``dropped``: before it a forward with gradients whose loss nobody uses, as if the client left a batch out.
    - ``no_grad``: before it a forward without gradients, as for the old probabilities of a policy.
    - ``metric``: after it one without gradients, before the backward, as for a number that the client logs.

    All of them run under one :func:`casting`.
    """
    with casting(scenario, caches):
        return _loss_of(scenario, module, batch)


def casting(scenario: Scenario, caches: bool = True) -> AbstractContextManager[Any]:
    """The torch.autocast of the Scenario's forwards and evaluations, if it has one; it ``caches`` casts of weights."""
    if not scenario.autocast:
        return nullcontext()
    return torch.autocast(scenario.device, torch.bfloat16, cache_enabled=caches)


def _loss_of(scenario: Scenario, module: Callable[..., Any], batch: Batch) -> Tensor:
    if scenario.forwards == "no_grad":
        with torch.no_grad():
            module(**batch)
    if scenario.forwards == "dropped":
        module(**batch)
    loss: Tensor = module(**batch)
    if scenario.forwards == "metric":
        with torch.no_grad():
            module(**mirrored(batch))
    return (loss + module(**mirrored(batch))) / 2 if scenario.forwards == "two" else loss


def mirrored(batch: Batch) -> Batch:
    """The batch with the last dimension of each of its tensors reversed."""
    return {name: value.flip(-1) if isinstance(value, Tensor) else value for name, value in batch.items()}
