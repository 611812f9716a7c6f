"""Construction: an engine from a model and a DeepSpeed-shaped configuration."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.comm.mesh import Mesh
from zerobench.engine.config.schema import accumulation_steps, load
from zerobench.engine.engine import Engine
from zerobench.engine.optim.optimizer import ZeroOptimizer, make_optimizer
from zerobench.engine.optim.schedulers import make_scheduler
from zerobench.engine.validate import check_dtypes, check_values


def initialize(
    model: nn.Module,
    config: dict[str, Any] | str | Path,
    model_parameters: Any = None,
    optimizer: torch.optim.Optimizer | None = None,
    lr_scheduler: Any = None,
    process_group: dist.ProcessGroup | None = None,
    device: torch.device | str | None = None,
    mesh: Mesh | None = None,
) -> tuple[Engine, ZeroOptimizer, None, Any]:
    """Build an engine over ``model``; a collective of the process group.

    Args:
        model: any module; its parameters become views of the engine's memory. Ranks start from rank 0's values.
        config: DeepSpeed-shaped, a dict or the path of a JSON file (docs/reference/configuration.md).
        model_parameters: parameters or parameter groups for the config's optimizer; default all trainable ones.
        optimizer: a fresh torch optimizer that a rule of engine/rules has; its rule and groups replace the config's. If
            neither gives an optimizer, the engine evaluates and does not train; at stage 3 it shards every parameter.
        lr_scheduler: a torch scheduler of ``optimizer``, or a callable that makes one from the returned optimizer; the
            engine steps it after each applied step.
        process_group: the ranks that share the states; default all, or this process alone.
        device: the device to train on; default the model's. If the model is on another device, it is moved unit by
            unit, so the device holds at most one unit in addition to the states that the rank keeps there.
        mesh: the shape of the ranks; by default all ranks share each state. Replicas (hybrid sharding) are refused.

    Returns:
        (engine, optimizer, None, scheduler), in DeepSpeed's order; the third is DeepSpeed's data loader.

    Raises:
        ConfigError: the configuration, the model, the mesh or the scheduler cannot be used.
        RankMismatch: the ranks were given different models, parameter groups or configurations.
    """
    parsed = load(config)
    check_values(model)
    check_dtypes(model)
    ranks = Ranks.of(process_group, mesh)
    accumulation_steps(parsed, ranks.world)
    engine_optimizer = make_optimizer(model, parsed, model_parameters, optimizer)
    scheduler = make_scheduler(lr_scheduler, engine_optimizer)
    place = _device(device, model)
    with _current(place):
        engine = Engine(model, parsed, engine_optimizer, scheduler, ranks, place)
    return engine, engine_optimizer, None, scheduler


def _device(given: torch.device | str | None, model: nn.Module) -> torch.device:
    """The device to train on, with its index if it has one."""
    if given is None:
        return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return torch.empty(0, device=given).device


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """A context with this GPU as the current one; NCCL uses it to send objects other than tensors."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
