"""Functional lookups with ``max_norm``, which scale rows of an engine's parameter in place."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # torch is not there yet when its module of functions is imported
    from torch import Tensor


def watch_lookups(functional: Any) -> None:
    """Make the scaled rows of ``embedding`` and ``embedding_bag`` hold for the lookup alone.

    The engine does this for the modules nn.Embedding and nn.EmbeddingBag. Each rank looks up other rows, so without it
    the ranks' weights would differ from each other.

    Args:
        functional: the module ``torch.nn.functional``.
    """
    for name in ("embedding", "embedding_bag"):
        lookup = getattr(functional, name)
        if not hasattr(lookup, "watched"):
            setattr(functional, name, _watched(lookup))


def _watched(lookup: Callable[..., Tensor]) -> Callable[..., Tensor]:
    place = list(inspect.signature(lookup).parameters).index("max_norm")

    @functools.wraps(lookup)
    def watched(*args: Any, **kwargs: Any) -> Tensor:
        if (args[place] if len(args) > place else kwargs.get("max_norm")) is None:
            return lookup(*args, **kwargs)
        with _kept(kwargs["weight"] if "weight" in kwargs else args[1]):
            return lookup(*args, **kwargs)

    # mypy allows no new attribute of a function
    setattr(watched, "watched", True)  # noqa: B010
    setattr(watched, "__prepare_scriptable__", lambda: lookup)  # noqa: B010  # what torch.jit.script compiles
    return watched


@contextmanager
def _kept(weight: Any) -> Iterator[None]:
    """Give an engine's parameter its values back at the end."""
    from torch import nn

    from zerobench.engine.registry import has_engine

    if not isinstance(weight, nn.Parameter) or not has_engine(weight):
        yield
        return
    before = weight.detach().clone()
    try:
        yield
    finally:
        weight.data.copy_(before)
