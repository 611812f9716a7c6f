"""GatheredParameters with DeepSpeed's meaning: over parameters of an engine, and of none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch import Tensor, nn

from zerobench import engine
from zerobench.compat.errors import SettingsError
from zerobench.engine.registry import has_engine
from zerobench.engine.state.partitioned import gathered, is_partitioned


@contextmanager
def GatheredParameters(
    params: Iterable[nn.Parameter | None] | nn.Parameter | nn.Module | None,
    modifier_rank: int | None = None,
    fwd_module: nn.Module | None = None,
    enabled: bool = True,
) -> Iterator[None]:
    """Make the parameters whole on every rank within the block; a collective.

    Edits persist: those of ``modifier_rank`` if it is given, else every rank must make the same. Parameters of no
    engine, sharded by zero.Init or whole on every rank, get the values of ``modifier_rank`` at the end. Tensors that
    are no parameters are left alone, and so is None, as the bias of a layer without one.

    Args:
        params: one or several, or a module's.
        modifier_rank: the rank whose edits persist.
        fwd_module: the module that uses them in its forward; the engine notices every use itself.
        enabled: False makes the context do nothing.

    Raises:
        SettingsError: there is something else among the parameters, or no such rank.
    """
    if not enabled:
        yield
        return
    _check_rank(modifier_rank)
    chosen = _parameters(params)
    of_engine = [each for each in chosen if has_engine(each)]
    plain = [each for each in chosen if not has_engine(each) and not is_partitioned(each)]
    with engine.GatheredParameters(of_engine, modifier_rank), gathered(chosen, modifier_rank):
        yield
        if modifier_rank is not None and dist.is_initialized():
            for parameter in plain:
                dist.broadcast(parameter.data, modifier_rank)


def _parameters(given: Iterable[nn.Parameter | None] | nn.Parameter | nn.Module | None) -> list[nn.Parameter]:
    """The parameters among those given, each once."""
    several = given.parameters() if isinstance(given, nn.Module) else given
    listed = [several] if several is None or isinstance(several, Tensor) else list(several)
    for each in listed:
        if each is not None and not isinstance(each, Tensor):
            raise SettingsError(
                f"GatheredParameters() got a {type(each).__name__} among the parameters; give parameters, such as "
                "model.parameters() or [layer.weight, layer.bias]"
            )
    return [each for each in dict.fromkeys(listed) if isinstance(each, nn.Parameter)]


def _check_rank(modifier_rank: int | None) -> None:
    world = dist.get_world_size() if dist.is_initialized() else 1
    if modifier_rank is not None and modifier_rank not in range(world):
        raise SettingsError(
            f"GatheredParameters() got modifier_rank {modifier_rank!r}; give a rank from 0 to {world - 1}"
        )


@contextmanager
def unwrap_model_for_generation(model: nn.Module) -> Iterator[nn.Module]:
    """The engine with all parameters whole within the block, in which each rank may run its own forwards."""
    with GatheredParameters(model):
        yield model


def register_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Do nothing: the engine notices every use of a parameter, in any module."""
