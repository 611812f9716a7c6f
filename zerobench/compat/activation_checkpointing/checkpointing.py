"""``deepspeed.checkpointing``: activation checkpointing, with DeepSpeed's options for a checkpoint's inputs.

A checkpoint keeps its floating-point inputs and runs its function again in backward, with the random numbers of the
forward. ``cpu_checkpointing`` keeps them in host memory. ``partition_activations`` divides them among the ranks of
model parallelism; without it there is one rank, which keeps each whole, as in DeepSpeed. With
``contiguous_memory_optimization`` the inputs of all checkpoints lie in buffers that are allocated once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.utils.checkpoint

from zerobench.compat.accelerator.accelerator import get_accelerator
from zerobench.compat.activation_checkpointing.rng_tracker import (
    RandomStates,
    get_cuda_rng_tracker,
    model_parallel_cuda_manual_seed,
    model_parallel_reconfigure_tp_seed,
)
from zerobench.compat.activation_checkpointing.saved_inputs import LEDGER, Buffers, SavedInput, is_activation, on_host
from zerobench.compat.config.reading import read
from zerobench.compat.config.surface import take
from zerobench.compat.errors import SettingsError, raised_as
from zerobench.compat.log import log_dist
from zerobench.compat.profiling.timers import SynchronizedWallClockTimer
from zerobench.engine.errors import ConfigError

__all__ = [
    "checkpoint",
    "configure",
    "get_cuda_rng_tracker",
    "is_configured",
    "model_parallel_cuda_manual_seed",
    "model_parallel_reconfigure_tp_seed",
    "most_saved_bytes",
    "non_reentrant_checkpoint",
    "partition_activations_in_checkpoint",
    "reset",
    "saved_bytes",
    "set_num_layers",
]


@dataclass(frozen=True)
class Options:
    """The section ``activation_checkpointing`` of a configuration."""

    partition_activations: bool = False
    contiguous_memory_optimization: bool = False
    cpu_checkpointing: bool = False
    number_checkpoints: int | None = None
    synchronize_checkpoint_boundary: bool = False
    profile: bool = False

    @classmethod
    def of(cls, section: dict[str, Any]) -> Options:
        """The options of a section; DeepSpeed ignores other keys."""
        known = {each.name for each in fields(cls)}
        return cls(**{key: value for key, value in section.items() if key in known and value is not None})

    def check(self) -> None:
        """Refuse options that do not fit each other.

        Raises:
            ConfigError: contiguous buffers need partitioned activations and the number of checkpoints.
        """
        if not self.contiguous_memory_optimization:
            return
        if not self.partition_activations or self.number_checkpoints is None:
            raise ConfigError(
                "contiguous_memory_optimization needs partition_activations and number_checkpoints, the number of "
                "checkpoints in a forward; set both, or leave it out"
            )


class _State:
    """The settings that ``configure`` has made in this process."""

    def __init__(self) -> None:
        self.options, self.configured = Options(), False
        self.buffers = Buffers()
        self.timers = SynchronizedWallClockTimer()


_state = _State()


@raised_as(SettingsError)
def configure(
    mpu_: Any,
    deepspeed_config: Any = None,
    partition_activations: bool | None = None,
    contiguous_checkpointing: bool | None = None,
    num_checkpoints: int | None = None,
    checkpoint_in_cpu: bool | None = None,
    synchronize: bool | None = None,
    profile: bool | None = None,
) -> None:
    """Set the options of all checkpoints from here on; an argument replaces the configuration's value.

    Args:
        mpu_: None; its model parallelism of one rank is accepted too.
        deepspeed_config: a configuration, of which the section ``activation_checkpointing`` counts.
        partition_activations, contiguous_checkpointing, num_checkpoints, checkpoint_in_cpu: see the module.
        synchronize: wait for the device at the beginning and at the end of a checkpoint.
        profile: print the times of a checkpoint.

    Raises:
        SettingsError: the options do not fit each other, or ``mpu_`` has several ranks of model parallelism.
    """
    _check_alone(mpu_)
    section = {} if deepspeed_config is None else _section(deepspeed_config)
    given = {
        "partition_activations": partition_activations,
        "contiguous_memory_optimization": contiguous_checkpointing,
        "number_checkpoints": num_checkpoints,
        "cpu_checkpointing": checkpoint_in_cpu,
        "synchronize_checkpoint_boundary": synchronize,
        "profile": profile,
    }
    options = Options.of(_typed({**section, **{key: value for key, value in given.items() if value is not None}}))
    options.check()
    _state.options, _state.configured, _state.buffers = options, True, Buffers()
    LEDGER.restart()
    log_dist(f"Activation Checkpointing Information: {options}", ranks=[0])


def _check_alone(mpu: Any) -> None:
    for name in ("get_tensor_model_parallel_world_size", "get_model_parallel_world_size"):
        world = getattr(mpu, name, None)
        if world is not None and world() != 1:
            raise ConfigError(f"mpu has {world()} ranks of model parallelism, and the engine has no other than 1")


def _section(config: Any) -> dict[str, Any]:
    """The section of a configuration, given as a dict, a path, or an object that has read one."""
    raw = read(config) if isinstance(config, dict | str | Path) else getattr(config, "_param_dict", {})
    return dict(raw.get("activation_checkpointing") or {})


def _typed(section: dict[str, Any]) -> dict[str, Any]:
    """The section with its types, as ``initialize()`` reads it: numbers and flags may be strings."""
    raw = {"activation_checkpointing": {key: value for key, value in section.items() if value != "auto"}}
    if faults := list(take(raw)):
        raise ConfigError("\n".join(faults))
    return raw["activation_checkpointing"]


def is_configured() -> bool:
    """Whether ``configure`` was called."""
    return _state.configured


def partition_activations_in_checkpoint(partition_activation: bool) -> None:
    """Set ``partition_activations``."""
    _state.options = replace(_state.options, partition_activations=partition_activation)


def set_num_layers(nlayers: int) -> None:
    """Set ``number_checkpoints``."""
    _state.options = replace(_state.options, number_checkpoints=nlayers)


def reset() -> None:
    """Free the buffers, after forwards that no backward follows."""
    _state.buffers = Buffers()


def saved_bytes() -> dict[str, int]:
    """Bytes that checkpoints keep now, by place (``device``, ``host``): the inputs of the running step."""
    return dict(+LEDGER.now)


def most_saved_bytes() -> dict[str, int]:
    """The most bytes that checkpoints have kept at once since ``configure``, by place."""
    return dict(+LEDGER.most)


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run ``function`` without keeping its activations; backward runs it again, with the same random numbers.

    Returns:
        its result; if it is a tuple of one tensor, this tensor.
    """
    options = _state.options
    with _boundary(options, "forward"):
        if torch.is_grad_enabled():
            result = _checkpointed(options, function, args, kwargs)
        else:
            result = function(*args, **kwargs)
    return result[0] if isinstance(result, tuple | list) and len(result) == 1 else result


non_reentrant_checkpoint = checkpoint


def _checkpointed(options: Options, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The forward now; the recomputation from the kept inputs, which are all that torch's checkpoint refers to."""
    kept = _keep(options, (*args, *kwargs.values()))
    names, states = list(kwargs), RandomStates()
    now: list[Any] = [*args, *kwargs.values()]

    def run() -> Any:
        if now:
            given = list(now)
            now.clear()
            return _call(function, given, names)
        with _boundary(options, "backward"), states.replayed():
            _state.buffers = Buffers()  # the next forward fills new ones
            return _call(function, [each.restore() if isinstance(each, SavedInput) else each for each in kept], names)

    return torch.utils.checkpoint.checkpoint(run, use_reentrant=False, preserve_rng_state=False)


def _call(function: Callable[..., Any], given: list[Any], names: list[str]) -> Any:
    """Call the function; the last arguments have these names."""
    positional = len(given) - len(names)
    return function(*given[:positional], **dict(zip(names, given[positional:], strict=True)))


def _keep(options: Options, given: tuple[Any, ...]) -> list[Any]:
    """The inputs, each activation among them as the options want it."""
    kept: list[Any] = []
    for position, each in enumerate(given):
        if not is_activation(each):
            kept.append(each)
            continue
        saved, copied = each.detach(), options.contiguous_memory_optimization or options.cpu_checkpointing
        if options.contiguous_memory_optimization:
            assert options.number_checkpoints is not None
            saved = _state.buffers.take(position, saved, options.number_checkpoints, options.cpu_checkpointing)
        elif options.cpu_checkpointing:
            saved = on_host(saved)
        kept.append(SavedInput(saved, options.cpu_checkpointing, each.device, each.requires_grad, copied))
    return kept


@contextlib.contextmanager
def _boundary(options: Options, phase: str) -> Iterator[None]:
    """The beginning and the end of a checkpoint: wait for the device and print the time, if the options want it."""
    if options.synchronize_checkpoint_boundary:
        get_accelerator().synchronize()
    timer = _state.timers(phase)
    profiled = options.profile and not timer.started_  # a checkpoint in a checkpoint is part of its time
    if profiled:
        timer.start()
    try:
        yield
    finally:
        if profiled:
            timer.stop()
            _state.timers.log([phase])
        if options.synchronize_checkpoint_boundary:
            get_accelerator().synchronize()
