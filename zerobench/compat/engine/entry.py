"""``deepspeed.initialize`` and the functions that a script calls before it."""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from zerobench import engine as reference
from zerobench.compat import schedules
from zerobench.compat.accelerator.accelerator import local_device
from zerobench.compat.comm.comm import init_distributed
from zerobench.compat.config import Settings, resolve
from zerobench.compat.config.surface import unknown_keys
from zerobench.compat.engine.engine import DeepSpeedEngine
from zerobench.compat.engine.given_arguments import check_objects, checked_model, listed
from zerobench.compat.engine.given_model import freeze_others, keep_precision
from zerobench.compat.engine.step_hooks import StepHooks
from zerobench.compat.engine.uncompiled import without_compile
from zerobench.compat.errors import SettingsError, raised_as
from zerobench.compat.log import notice
from zerobench.compat.optim.optimizer_attributes import add_attributes
from zerobench.compat.optim.optimizers import as_client
from zerobench.compat.parallelism import refuse_parallelism
from zerobench.compat.runtime.loader import DeepSpeedDataLoader
from zerobench.engine.errors import ConfigError
from zerobench.engine.handover import hand_over


@raised_as(SettingsError)
def initialize(
    args: Any = None,
    model: nn.Module | None = None,
    optimizer: Any = None,
    model_parameters: Any = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    distributed_port: int = 29500,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Any = None,
    config: dict[str, Any] | str | Path | None = None,
    mesh_param: Any = None,
    config_params: dict[str, Any] | str | Path | None = None,
) -> tuple[DeepSpeedEngine, Any, DeepSpeedDataLoader | None, Any]:
    """Build an engine over ``model``, with DeepSpeed's arguments in DeepSpeed's order; a collective.

    Args:
        args: the script's arguments; ``deepspeed_config`` is the configuration, and others resolve ``auto``.
        model: any module.
        optimizer: a torch optimizer, one of DeepSpeed's classes, or a callable that makes one from the parameters.
        model_parameters: parameters or groups for the configuration's optimizer.
        training_data: a dataset; the third result loads this rank's micro-batches of it.
        lr_scheduler: a scheduler, or a callable that makes one from the optimizer; it comes before the configuration's.
        distributed_port: the port at which ranks meet if the launcher gives none.
        mpu, mesh_param: refused.
        dist_init_required: False if the caller starts the process group.
        collate_fn: makes the batches of ``training_data``.
        config: a dict, a path, or JSON in base64; ``config_params`` is an older name.

    Returns:
        (engine, optimizer, training_dataloader, lr_scheduler).

    Raises:
        SettingsError: the configuration or an argument cannot be used; it is a ConfigError.
    """
    refuse_parallelism(mpu=mpu, mesh_param=mesh_param)
    model = checked_model(model)
    check_objects(optimizer, lr_scheduler, training_data)
    _refuse_engines(model)
    settings = resolve(_config(args, config if config is not None else config_params), model, args)
    init_distributed(distributed_port=distributed_port, dist_init_required=dist_init_required)
    model = _prepared(model, settings)
    parameters = _filled(listed(model.parameters() if model_parameters is None else model_parameters))
    client = _client(optimizer, parameters, lr_scheduler)
    trained = _trained(model, settings, client, parameters)  # freezes the others
    built, schedule = _build(model, settings, client, parameters, lr_scheduler)
    wrapped = DeepSpeedEngine(built, settings, trained, collate_fn)
    _attach(wrapped, optimizer, lr_scheduler, training_data)
    _attach_optimizers(wrapped, built, optimizer if isinstance(optimizer, Optimizer) else client)
    return wrapped, wrapped.optimizer, wrapped.training_dataloader, schedule


def _refuse_engines(model: Any) -> None:
    """Refuse an engine, or a model with one in it, whose module a new engine would take away from it."""
    for name, inner in model.named_modules() if isinstance(model, nn.Module) else ():
        if isinstance(inner, DeepSpeedEngine):
            part = f"has the engine of an earlier initialize() at {name!r}" if name else "is an engine"
            raise ConfigError(f"the model of deepspeed.initialize() {part}; give the engine's module, engine.module")


def _client(optimizer: Any, parameters: Any, lr_scheduler: Any) -> Optimizer | None:
    """The caller's optimizer, if there is one. It loses groups without parameters, unless a schedule that is made has
    their rates: the one given here, or one that the caller steps."""
    client = as_client(optimizer, parameters)
    if client is not None and not isinstance(lr_scheduler, LRScheduler) and not _is_scheduled(client):
        client.param_groups[:] = _filled(client.param_groups)
    return client


def _is_scheduled(client: Optimizer) -> bool:
    """Whether a schedule is made: torch's schedules keep the initial rate in each group."""
    return any("initial_lr" in group for group in client.param_groups)


def _attach(engine: DeepSpeedEngine, optimizer: Any, lr_scheduler: Any, training_data: Any) -> None:
    """The caller's own objects as attributes of the engine, and the loader of the data."""
    engine.client_optimizer, engine.client_lr_scheduler = optimizer, lr_scheduler
    engine.training_data = training_data
    engine.training_dataloader = None if training_data is None else engine.deepspeed_io(training_data)


def _attach_optimizers(engine: DeepSpeedEngine, built: reference.Engine, inner: Optimizer | None) -> None:
    """The optimizer that the engine stands for, and the hooks of its steps."""
    engine.basic_optimizer = add_attributes(built, inner)
    engine.step_hooks = StepHooks(built.optimizer, engine.basic_optimizer)


def _prepared(model: nn.Module, settings: Settings) -> nn.Module:
    """The model without its compilation or an earlier engine, in its precision; each ``nvme_path`` is made."""
    model = without_compile(model, settings)
    hand_over(model.parameters())
    keep_precision(model, settings)
    for name in ("offload_optimizer", "offload_param"):
        section = settings.engine["zero_optimization"].get(name) or {}
        if section.get("device") == "nvme" and section.get("nvme_path"):
            _make(Path(section["nvme_path"]), f"zero_optimization.{name}.nvme_path")
    return model


def _make(folder: Path, key: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{key}: cannot make the folder {str(folder)!r}: {error.strerror}") from None


def _trained(model: nn.Module, settings: Settings, client: Any, parameters: list[Any]) -> list[Any]:
    """The parameters or groups of the client's or the configuration's optimizer; if there is one, freeze the others."""
    trained: list[Any] = parameters if client is None else client.param_groups
    if client is not None or settings.engine.get("optimizer") is not None:
        if not trained and next(model.parameters(), None) is not None:
            raise ConfigError(
                "model_parameters of deepspeed.initialize() is empty; an iterator, as of model.parameters() and "
                "filter(), can be read once: give a new one, or a list"
            )
        freeze_others(model, trained)
    return trained


def _filled(groups: list[Any]) -> list[Any]:
    """The groups that have parameters, as in DeepSpeed; all, if none has."""
    return [each for each in groups if not isinstance(each, dict) or each["params"]] or groups


def _build(
    model: nn.Module, settings: Settings, client: Any, parameters: list[Any], lr_scheduler: Any
) -> tuple[reference.Engine, Any]:
    """The reference engine with its schedule; rank 0 logs the keys without effect."""
    built, _, _, schedule = reference.initialize(
        model,
        settings.engine,
        model_parameters=parameters,
        optimizer=client,
        lr_scheduler=_schedule(settings, client, lr_scheduler),
        device=local_device(),
    )
    _log_settings(settings)
    return built, schedule


def _config(args: Any, given: Any) -> Any:
    """The one configuration among the arguments."""
    _take_older(args)
    found = [each for each in (given, getattr(args, "deepspeed_config", None)) if each is not None]
    if not found:
        raise ConfigError("deepspeed.initialize() has no configuration; pass config=, or --deepspeed_config FILE")
    if len(found) > 1:
        raise ConfigError("deepspeed.initialize() has two configurations; pass config= or --deepspeed_config, not both")
    return found[0]


def _take_older(args: Any) -> None:
    """Make ``deepscale_config`` of the script's arguments its ``deepspeed_config``, as DeepSpeed does."""
    older = getattr(args, "deepscale_config", None)
    if older is None:
        return
    if getattr(args, "deepspeed_config", None) is not None:
        raise ConfigError("--deepscale_config and --deepspeed_config are both given; take --deepscale_config out")
    notice("--deepscale_config is an older name; use --deepspeed_config")
    args.deepspeed_config, args.deepscale_config = older, None


def _schedule(settings: Settings, client: Any, lr_scheduler: Any) -> Any:
    """The caller's schedule, else the configuration's as a callable; None without an optimizer."""
    section = settings.section("scheduler")
    if lr_scheduler is not None and type(lr_scheduler).__name__ != "DummyScheduler":
        return lr_scheduler
    if not section.get("type"):
        return None
    if client is None and settings.engine.get("optimizer") is None:
        return None
    return lambda optimizer: make_schedule(section["type"], section.get("params") or {}, optimizer)


def make_schedule(type_: str, params: dict[str, Any], optimizer: Any) -> Any:
    """DeepSpeed's schedule of this name, or torch's.

    Raises:
        ConfigError: there is none of this name, or its parameters are wrong.
    """
    made = schedules.SCHEDULES.get(type_) or getattr(torch.optim.lr_scheduler, type_, None)
    if not isinstance(made, type) or not issubclass(made, schedules.Schedule | LRScheduler):
        known = ", ".join(schedules.VALID_LR_SCHEDULES)
        raise ConfigError(f"scheduler.type {type_!r} is neither DeepSpeed's ({known}) nor of torch.optim.lr_scheduler")
    _, *names = inspect.signature(made).parameters
    if unknown := [*unknown_keys("scheduler.params", params, names)]:
        raise ConfigError("\n".join(unknown))
    try:
        return made(optimizer, **params)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"scheduler.params of {type_}: {error}") from None


def _log_settings(settings: Settings) -> None:
    """One line with the keys that have no effect."""
    if settings.without_effect:
        notice(f"without effect on what is computed: {', '.join(sorted(settings.without_effect))}")


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add ``--deepspeed``, ``--deepspeed_config`` and their older names to a script's parser."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    group.add_argument("--deepspeed", default=False, action="store_true", help="use DeepSpeed's engine")
    group.add_argument("--deepspeed_config", default=None, type=str, help="DeepSpeed's configuration, a JSON file")
    group.add_argument("--deepscale", default=False, action="store_true", help="an older name of --deepspeed")
    group.add_argument("--deepscale_config", default=None, type=str, help="an older name of --deepspeed_config")
    return parser
