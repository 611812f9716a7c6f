"""GatheredParameters with DeepSpeed's meaning: over parameters of an engine, and of none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch import nn

from zerobench import engine
from zerobench.engine.registry import has_engine
from zerobench.engine.state.partitioned import gathered, is_partitioned


@contextmanager
def GatheredParameters(
    params: Iterable[nn.Parameter] | nn.Parameter | nn.Module,
    modifier_rank: int | None = None,
    fwd_module: nn.Module | None = None,
    enabled: bool = True,
) -> Iterator[None]:
    """Make the parameters whole on every rank within the block; a collective.

    Edits persist: those of ``modifier_rank`` if it is given, else every rank must make the same. Parameters of no
    engine, sharded by zero.Init or whole on every rank, get the values of ``modifier_rank`` at the end. Tensors that
    are no parameters are left alone.

    Args:
        params: one or several, or a module's.
        modifier_rank: the rank whose edits persist.
        fwd_module: the module that uses them in its forward; the engine notices every use itself.
        enabled: False makes the context do nothing.
    """
    if not enabled:
        yield
        return
    given = params.parameters() if isinstance(params, nn.Module) else params
    listed = [given] if isinstance(given, nn.Parameter) else list(dict.fromkeys(given))
    chosen = [each for each in listed if isinstance(each, nn.Parameter)]
    of_engine = [each for each in chosen if has_engine(each)]
    plain = [each for each in chosen if not has_engine(each) and not is_partitioned(each)]
    with engine.GatheredParameters(of_engine, modifier_rank), gathered(chosen, modifier_rank):
        yield
        if modifier_rank is not None and dist.is_initialized():
            for parameter in plain:
                dist.broadcast(parameter.data, modifier_rank)


@contextmanager
def unwrap_model_for_generation(model: nn.Module) -> Iterator[nn.Module]:
    """The engine with all parameters whole within the block, in which each rank may run its own forwards."""
    with GatheredParameters(model):
        yield model


def register_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Do nothing: the engine notices every use of a parameter, in any module."""
