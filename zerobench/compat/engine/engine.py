"""DeepSpeedEngine: DeepSpeed's engine class, an nn.Module around the reference engine."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from zerobench.compat.comm.comm import get_local_rank
from zerobench.compat.comm.comms_logger import comms_logger
from zerobench.compat.config import Settings
from zerobench.compat.config.deepspeed_config import DeepSpeedConfig
from zerobench.compat.engine.accumulation_methods import AccumulationMethods
from zerobench.compat.engine.attributes import REFUSED_ATTRIBUTES, Attributes
from zerobench.compat.engine.checkpoint_methods import CheckpointMethods
from zerobench.compat.engine.direct_backward import DirectBackward
from zerobench.compat.engine.edits import Edits
from zerobench.compat.engine.given_model import GivenModel
from zerobench.compat.engine.group_values import GroupValues
from zerobench.compat.engine.key_accessors import KeyAccessors
from zerobench.compat.engine.overflow_log import OverflowLog
from zerobench.compat.engine.parameter_offload import ParameterOffload
from zerobench.compat.engine.progress import Progress
from zerobench.compat.engine.refused_methods import RefusedMethods
from zerobench.compat.engine.step_hooks import StepHooks
from zerobench.compat.engine.uncompiled import eagerly
from zerobench.compat.errors import CallError, LossError
from zerobench.compat.log import notice
from zerobench.compat.parallelism import Parallelism
from zerobench.compat.patches.clipping import watch_clipping
from zerobench.compat.patches.lookups import watch_lookups
from zerobench.compat.patches.wrappers import watch_wrappers
from zerobench.compat.profiling.flops_profiler import FlopsProfiler
from zerobench.compat.profiling.monitors import MonitorMaster
from zerobench.compat.profiling.timers import SynchronizedWallClockTimer, ThroughputTimer
from zerobench.compat.runtime.loader import DeepSpeedDataLoader
from zerobench.compat.zero.status import mark
from zerobench.engine import Engine
from zerobench.engine.engine import NO_OPTIMIZER


class DeepSpeedEngine(
    AccumulationMethods,
    KeyAccessors,
    CheckpointMethods,
    GroupValues,
    Parallelism,
    Attributes,
    RefusedMethods,
    nn.Module,
):
    """The reference engine with DeepSpeed's calls; names that it lacks are those of the model.

    Args:
        engine: the reference engine.
        settings: the resolved configuration.
        given: the parameters or groups that the caller gave to train.
        collate_fn: makes the batches of ``training_data`` and of ``deepspeed_io``.
    """

    def __init__(self, engine: Engine, settings: Settings, given: list[Any], collate_fn: Any = None) -> None:
        nn.Module.__init__(self)
        self._settings, self.collate_fn = settings, collate_fn
        object.__setattr__(self, "_engine", engine)
        engine.accumulation.repeats = engine.reducer.gives_zeros = engine.saves_within_steps = True
        self.module = engine.module
        self.training = engine.module.training
        self.config, self._config = settings.raw, DeepSpeedConfig.of(settings, engine.ranks.world)
        self._micro_batch = self._config.train_micro_batch_size_per_gpu
        self.optimizer: Any = engine.optimizer if engine.optimizer.trains else None
        self.basic_optimizer: Any = None
        self.step_hooks: StepHooks | None = None
        self.training_dataloader: DeepSpeedDataLoader | None = None
        self.global_samples = 0
        self._stepped = self._destroyed = False
        self._given, self._edits = GivenModel(engine, given), Edits(engine)
        watch_clipping()
        watch_lookups(torch.nn.functional)
        watch_wrappers()
        self._progress, self._overflows = Progress(self), OverflowLog(engine)
        self._direct = DirectBackward(engine, self._around_backward)
        comms_logger.configure(settings.section("comms_logger"))
        engine.optimizer.stepped_by = self.step  # as the optimizer that DeepSpeed returns, which Lightning Fabric steps
        engine.optimizer.zeroed_by = engine.accumulation.drop
        engine.optimizer.norm_by = lambda: self.get_global_grad_norm() or 0.0  # DeepSpeed has 0 before the first step
        setattr(engine.optimizer, "zero_stage", self.zero_optimization_stage())  # noqa: B010  # for DeepSpeed's classes
        if self.zero_optimization_partition_weights():
            offload = ParameterOffload(self.module)
            setattr(engine.optimizer, "parameter_offload", offload)  # noqa: B010  # DeepSpeed's name
            self.optimizer = self.optimizer or offload  # as in DeepSpeed, for an engine that only evaluates
            for parameter in self.module.parameters():
                mark(parameter)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in REFUSED_ATTRIBUTES:
                raise AttributeError(f"engine.{name} is not offered: {REFUSED_ATTRIBUTES[name]}", name=name) from None
            module = self.__dict__["_modules"].get("module")
            if module is None or not hasattr(module, name):
                raise
            return getattr(module, name)

    # Training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward; a collective at stage 3."""
        if self._engine.unsharder is not None:
            self._given.check_lives()
        if self.fp16_auto_cast():
            args, kwargs = _half(args), _half(kwargs)
        self._direct.check_ended()
        self._progress.forward(self.module.training)
        with (
            self._progress.timing("fwd", self.module.training),
            self._progress.profiling(),
            comms_logger.recording(),
            self._autocast(),
            self._uncompiled(),
        ):
            outputs = self._engine(*args, **kwargs)
        self._direct.watch(outputs)
        return outputs

    def _autocast(self) -> AbstractContextManager[Any]:
        """torch.autocast as the section ``torch_autocast`` says.

        Without it a caller's own is off on a GPU and stays on on the CPU: DeepSpeed asks for that of CUDA alone.
        """
        enabled = self.torch_autocast_enabled()
        if not enabled and (self.device.type == "cpu" or not torch.is_autocast_enabled(self.device.type)):
            return nullcontext()
        if not enabled:
            notice("torch.autocast is off within the engine; enable the section torch_autocast")
        return torch.autocast(self.device.type, self.torch_autocast_dtype(), enabled=enabled)

    def backward(self, loss: Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> Tensor:
        """Backward of one micro-step; returns the loss, divided by the micro-steps if ``scale_wrt_gas`` is set."""
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise LossError(f"backward() takes a scalar loss, got {shape}; reduce it, for example by mean()")
        if not loss.requires_grad:
            raise CallError("the loss has no graph: its forward ran under no_grad, or no parameter of it trains")
        self._given.check_lives()
        self._check_trains()
        self._direct.check_ended()
        with self._around_backward():
            self._engine.backward(loss, retain_graph, scale_wrt_gas)
        return loss.detach() / self.gradient_accumulation_steps() if scale_wrt_gas else loss.detach()

    def _check_trains(self) -> None:
        if not self._engine.optimizer.trains:
            raise CallError(NO_OPTIMIZER)

    @contextmanager
    def _around_backward(self) -> Iterator[None]:
        with self._progress.timing("bwd"), comms_logger.recording(), self._uncompiled():
            yield

    def _uncompiled(self) -> AbstractContextManager[None]:
        return nullcontext() if self._engine.unsharder is None else eagerly()

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the loss scale, for ``loss.backward()`` without the engine; fp16 needs it."""
        return self._direct.scale(loss)

    def step(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        """Update at the accumulation boundary, otherwise count the micro-step; a collective.

        Raises:
            RuntimeError: the engine has no optimizer, or the call is inside no_sync() or coalesce_grad_reduction(), or
                gives ``lr_kwargs``.
        """
        self._direct.check_ended()
        self._check_step()
        if lr_kwargs:
            raise RuntimeError(f"step() takes no lr_kwargs, got {lr_kwargs}; call the scheduler's step() with them")
        self._given.check()
        self._check_trains()
        self._direct.adopt()
        with self._progress.timing("step"), comms_logger.recording(), self._hooks_of_step():
            before = self._engine.global_steps
            with self._edits.kept(), self._overflows.watching():
                self._engine.step()
            self._stepped = self._engine.global_steps > before
        self._end_coalesced()
        if self._stepped:
            self.global_samples += self.train_batch_size()
        self._progress.step(self._stepped)

    def _hooks_of_step(self) -> AbstractContextManager[None]:
        """Runs the hooks of optimizers; they are outside of what sees edits, so that the masters follow theirs."""
        if self.step_hooks is None:
            return nullcontext()
        self.step_hooks.check()
        return self.step_hooks.around(self.is_gradient_accumulation_boundary(), self.was_step_applied)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop gradients that the backward of another engine has left, and those of a step that has had its last
        backward, if another backward follows in place of ``step()``; between micro-steps they stay."""
        self.module.zero_grad(set_to_none)
        self._engine.accumulation.drop()

    def was_step_applied(self) -> bool:
        """Whether the last ``step()`` updated the parameters."""
        return self._stepped and not self._engine.optimizer.overflow

    def train(self, mode: bool = True) -> DeepSpeedEngine:
        """Set the module's mode."""
        self.training = mode
        self.module.train(mode)
        return self

    # Reading

    @property
    def lr_scheduler(self) -> Any:
        """The schedule that the engine steps; None if the caller steps it."""
        return self._engine.lr_scheduler

    @lr_scheduler.setter
    def lr_scheduler(self, scheduler: Any) -> None:
        self._engine.lr_scheduler = scheduler

    @property
    def timers(self) -> SynchronizedWallClockTimer:
        """The timers of ``wall_clock_breakdown``; the caller may add others."""
        return self._progress.timers

    @property
    def tput_timer(self) -> ThroughputTimer:
        """The throughput of training."""
        return self._progress.throughput

    @property
    def monitor(self) -> MonitorMaster:
        """The monitors; the caller may write events of its own."""
        return self._progress.monitor

    @property
    def flops_profiler(self) -> FlopsProfiler:
        """The profiler of the section ``flops_profiler``; there is none if the section is not enabled."""
        if self._progress.profiler is None:
            raise AttributeError(name="flops_profiler")  # __getattr__ has the reason
        return self._progress.profiler

    @property
    def device(self) -> torch.device:
        """The device of training."""
        return self._engine.device

    @property
    def local_rank(self) -> int:
        """This process among those of its host."""
        return get_local_rank()

    def get_global_grad_norm(self) -> Tensor | None:
        """The norm of the last step's mean gradient before clipping, in a tensor as DeepSpeed's; inf if it skipped."""
        norm = math.inf if self._engine.optimizer.overflow else self._engine.get_global_grad_norm()
        return None if norm is None else torch.tensor(norm, dtype=torch.float64)

    def deepspeed_io(
        self,
        dataset: Any,
        batch_size: int | None = None,
        route: str = "train",
        pin_memory: bool = True,
        data_sampler: Any = None,
        collate_fn: Any = None,
        num_local_io_workers: int | None = None,
    ) -> DeepSpeedDataLoader:
        """A loader of this rank's share of the dataset; it shuffles if ``route`` is ``train``."""
        ranks = self._engine.ranks
        if data_sampler is None and route in ("eval", "predict"):
            data_sampler = torch.utils.data.DistributedSampler(dataset, ranks.world, ranks.rank, shuffle=False)
        return DeepSpeedDataLoader(
            dataset,
            batch_size or self._micro_batch,
            pin_memory,
            self.local_rank,
            tput_timer=None,
            collate_fn=collate_fn or self.collate_fn,
            num_local_io_workers=num_local_io_workers,
            data_sampler=data_sampler,
            data_parallel_world_size=ranks.world,
            data_parallel_rank=ranks.rank,
            dataloader_drop_last=self.dataloader_drop_last(),
        )

    # Life

    def offload_states(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing on a CPU, where all states are in host memory.

        Raises:
            NotImplementedError: the device is a GPU.
        """
        if self.device.type != "cpu":
            raise NotImplementedError(
                "offload_states() is not offered; zero_optimization.offload_optimizer and offload_param keep states in "
                "host memory"
            )

    reload_states = offload_states

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Run the module as it is: compilation would change nothing that is computed."""
        self.is_compiled = True

    def collect_python_gc(self) -> int:
        """Run Python's garbage collector."""
        return gc.collect()

    def empty_partition_cache(self) -> None:
        """Reshard what is idle."""
        if self._engine.unsharder is not None:
            self._engine.unsharder.reshard_idle()

    def destroy(self) -> None:
        """Remove the hooks; a second call does nothing."""
        if not self._destroyed:
            self._destroyed = True
            self._direct.check_ended()
            self._progress.close()
            self._given.close()
            if not self._engine.destroyed:
                self._engine.destroy()


def _half(value: Any) -> Any:
    """``value`` with its floating-point tensors in fp16."""
    if isinstance(value, Tensor):
        return value.half() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _half(each) for key, each in value.items()}
    return type(value)(map(_half, value)) if isinstance(value, list | tuple) else value
