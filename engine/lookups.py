"""Embeddings with ``max_norm``, whose lookups change rows of the weight in place."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Lookups:
    """Makes the change that ``max_norm`` makes hold for the lookup alone.

    torch scales the rows that a forward looks up, in place. These are other rows on each rank, so the ranks' weights
    would differ from each other, and from the masters. After each lookup the weight gets its values back; the next one
    scales the rows again. The forwards of all stages are equal, because a sharded weight is gathered anew anyway.

    Args:
        module: the model; the hooks that gather its parameters are on it.
    """

    def __init__(self, module: nn.Module) -> None:
        self._hooks = []
        for each in module.modules():
            if isinstance(each, nn.Embedding | nn.EmbeddingBag) and each.max_norm is not None:
                kept = _Kept()
                self._hooks += [
                    each.register_forward_pre_hook(kept.keep),  # after the hook that gathers the weight
                    each.register_forward_hook(kept.restore, prepend=True, always_call=True),  # before its release
                ]

    def close(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()


class _Kept:
    """The weight before each running lookup, innermost last. Its methods are hooks; a model with them can be copied."""

    def __init__(self) -> None:
        self._weights: list[Tensor] = []

    def keep(self, embedding: nn.Module, *_: Any) -> None:
        self._weights.append(embedding.weight.detach().clone())  # type: ignore[operator]

    def restore(self, embedding: nn.Module, *_: Any) -> None:
        if self._weights:  # the weight may not have been gathered
            embedding.weight.data.copy_(self._weights.pop())  # type: ignore[operator]
