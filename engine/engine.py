"""The engine: trains any nn.Module with its states placed by a ZeRO stage."""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from zerobench.engine.accumulation import Accumulation
from zerobench.engine.backward import AtOnce
from zerobench.engine.checkpoint.calls import CheckpointCalls
from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.comm.wire import CastFormat, WireFormat
from zerobench.engine.config.schema import Config, accumulation_steps
from zerobench.engine.fast_paths import FastPaths
from zerobench.engine.gradients import GradientReducer
from zerobench.engine.layout import Layout
from zerobench.engine.lookups import Lookups
from zerobench.engine.optim.check import PendingOutcome
from zerobench.engine.optim.loss_scaler import LossScaler
from zerobench.engine.optim.optimizer import ZeroOptimizer
from zerobench.engine.optim.outcomes import Outcomes
from zerobench.engine.optim.step import Stepper
from zerobench.engine.placement import Placement
from zerobench.engine.read_cache import ReadCache
from zerobench.engine.registry import register
from zerobench.engine.replicated import take_over_replicated
from zerobench.engine.stage3.hooks import ParameterHooks
from zerobench.engine.stage3.unshard import Unsharder
from zerobench.engine.state.assignment import StoreAssignment
from zerobench.engine.state.replaced import take_over
from zerobench.engine.state.unit import UnitState
from zerobench.engine.validate import check_gathers, check_same

# Small blocks with up to this many elements are reduced together. If there were more, too little of backward would
# remain to overlap with the reduction (docs/notes/speed.md). A GPU moves more in the time that the host takes for a
# unit.
_TRAVELS_TOGETHER = {"cpu": 1 << 21, "cuda": 1 << 25}

#: The error of a call that trains.
NO_OPTIMIZER = "this engine has no optimizer, so it only evaluates; give config['optimizer'] or pass a torch optimizer"


class Engine(CheckpointCalls):
    """Trains ``module`` on the ranks of a process group; created by :func:`zerobench.initialize`.

    A step is ``gradient_accumulation_steps`` times::

        loss = engine(inputs)      # stage 3: units are gathered as forward reaches them
        engine.backward(loss)      # ranks send gradients to the owners while backward runs
        engine.step()              # at the last micro-step all ranks agree, update and all-gather; before it, no-op

    The parts are documented in their classes: Layout (the flat space and the owner of each element), UnitState and the
    two kinds of store (states), Unsharder and ParameterHooks (sharded parameters), GradientReducer, Stepper (update).
    """

    def __init__(
        self,
        module: nn.Module,
        config: Config,
        optimizer: ZeroOptimizer,
        scheduler: Any,
        ranks: Ranks,
        device: torch.device,
    ) -> None:
        self.module, self.config, self.optimizer, self.lr_scheduler = module, config, optimizer, scheduler
        self.ranks, self.device = ranks, device
        self.gradient_accumulation_steps = accumulation_steps(config, ranks.world)
        self.accumulation = Accumulation(self.gradient_accumulation_steps, config.managed_gradient_accumulation)
        self.global_steps = 0
        self._ended_early: str | None = None  # the call that an exception interrupted
        self._lost: str | None = None  # the first parameter that a later engine has taken over
        check_same(module, optimizer, config, ranks)
        if config.zero_optimization.stage == 3:
            check_gathers(module)
        self._build()
        self.destroyed = False
        register(module, self)

    def _build(self) -> None:
        """Lay out the model, take over its parameters, and build the parts."""
        zero, config = self.config.zero_optimization, self.config
        placement = Placement.of_stage(zero.stage)
        together = min(zero.reduce_bucket_size, _TRAVELS_TOGETHER[self.device.type])
        layout = self._lay_out(placement, together)
        wire = CastFormat(config.communication_dtype)
        self.stores = StoreAssignment(
            config,
            layout.units,
            self.ranks,
            placement,
            wire,
            self.device,
            several=self.accumulation.several,
            names=self.optimizer.keep_states(),
        )
        self.states = [self.stores.build(unit) for unit in layout.units]
        self.stores.settle()
        take_over_replicated(self.module, self.states, self.ranks, config.dtype, self.device)
        self.read_cache = ReadCache(self.states, self.ranks, zero.stage3_prefetch_bucket_size)
        sharded = [state for state in self.states if state.sharded]
        self.unsharder: Unsharder | None = None
        self.hooks: ParameterHooks | None = None
        if sharded:
            self.unsharder, self.hooks = self._watch(sharded)
        self._lookups, self._fast_paths = Lookups(self.module), FastPaths(self.module)
        self.reducer = self._build_reducer(wire, together)
        self.outcomes = self.optimizer.outcomes = Outcomes(LossScaler(config.fp16), len(layout.trainable))
        bucket = zero.allgather_bucket_size
        self.stepper = Stepper(self.states, layout, self.ranks, self.optimizer, self.outcomes, gather_bucket=bucket)

    def _build_reducer(self, wire: WireFormat, together: int) -> GradientReducer:
        zero = self.config.zero_optimization
        return GradientReducer(
            self.states,
            self.ranks,
            self.unsharder or AtOnce(),
            wire,
            bucket=zero.reduce_bucket_size,
            together=together,
            every_micro_step=zero.reduces_every_micro_step,
            overlap=zero.overlap_comm,
            gather_bucket=zero.allgather_bucket_size,
        )

    def _lay_out(self, placement: Placement, together: int) -> Layout:
        """The model's units; ``together`` is the number of elements up to which neighbouring blocks share a unit."""
        zero, sharded = self.config.zero_optimization, placement.parameters
        return Layout.of(
            self.module,
            world=self.ranks.world,
            chunk=zero.chunk_size,
            merge=0 if sharded else together,
            shard_frozen=sharded,
            persistence=zero.stage3_param_persistence_threshold if sharded else 0,
            trains=self.optimizer.trains,
        )

    def _watch(self, sharded: list[UnitState]) -> tuple[Unsharder, ParameterHooks]:
        zero = self.config.zero_optimization
        unsharder = Unsharder(
            sharded,
            self.ranks,
            bucket=zero.allgather_bucket_size,
            prefetch=zero.stage3_prefetch_bucket_size,
            max_live=zero.stage3_max_live_parameters,
        )
        return unsharder, ParameterHooks(self.module, sharded, unsharder)

    # Training

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward; a collective at stage 3, also in evaluation."""
        self._check_whole()
        if self.hooks is None:
            return self.module(*args, **kwargs)
        with self.hooks.forward():
            return self.module(*args, **kwargs)

    def backward(self, loss: Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> Tensor:
        """Backward of one leaf's mean loss, and the reduction of its gradients. A collective.

        The loss is divided neither by the micro-steps nor by the ranks: the step takes the mean once.

        Args:
            loss: a scalar.
            retain_graph: keep the graph for another backward through it.
            scale_wrt_gas: False if the caller has divided by the micro-steps; the step then divides by the ranks only.

        Returns:
            ``loss``, unchanged.

        Raises:
            RuntimeError: the engine has no optimizer, the step needs a ``step()`` first (see Accumulation),
                an exception ended a backward or a step, or a later engine has taken over a parameter.
        """
        scale = self.outcomes.scale
        scaled = loss * scale if scale != 1 else loss * 1
        scaled.register_hook(lambda _: self.reducer.entered())  # type: ignore[no-untyped-call]
        with self.micro_step(loss, scale_wrt_gas):
            scaled.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
        return loss

    @contextmanager
    def micro_step(self, loss: Tensor | None = None, scale_wrt_gas: bool = True) -> Iterator[None]:
        """One micro-step: its backward runs in the block, and its gradients are reduced when the block ends.

        A collective. The backward calls ``reducer.entered()`` before any parameter has its gradient.

        Args:
            loss: the root of the backward's graph; None if it is not known.
            scale_wrt_gas: see :meth:`backward`.

        Raises:
            RuntimeError: as :meth:`backward`.
        """
        self._check_whole()
        self._check_trains()
        self.reducer.check_own()
        self.read_cache.clear()
        micro_step = self.accumulation.begin(scale_wrt_gas)
        if micro_step.last and micro_step.repeated:
            self._check_repeatable()
        self.stores.check_kept(micro_step.last and not micro_step.repeated)
        with self._to_its_end("backward()"):
            with nullcontext() if self.hooks is None else self.hooks.backward():
                self.reducer.begin(micro_step.first, micro_step.last, loss)
                yield
            self.reducer.finish()
        self.accumulation.done(micro_step)

    def _check_repeatable(self) -> None:
        """Refuse to add to sums that have been reduced as those of the step."""
        if not self.config.zero_optimization.reduces_every_micro_step:
            raise RuntimeError(
                "backward() was called twice without step(), and reduction_schedule is 'boundary', so the first one "
                "ended the sum; set zero_optimization.reduction_schedule to 'micro_step'"
            )

    def step(self) -> None:
        """Apply the optimizer at the accumulation boundary, as a collective; otherwise count the micro-step.

        If any rank overflows, no rank changes a state and the schedule does not advance; only the loss scale changes.

        Raises:
            RuntimeError: called without a ``backward()`` before, or after an exception in a backward or a step.
        """
        self._check_whole()
        self._check_trains()
        self.keep_replaced()
        self.optimizer.check_options()
        boundary, complete = self.accumulation.end()
        self.read_cache.clear()
        if boundary:
            with self._to_its_end("step()"):
                if not complete:
                    self.reducer.complete()
                self._step()
                self.stores.settle()

    @contextmanager
    def _to_its_end(self, call: str) -> Iterator[None]:
        """Record the call if it raises: gradients may be partly counted or sent, states partly updated."""
        try:
            yield
        except BaseException:
            self._ended_early = call
            raise

    def _check_whole(self) -> None:
        if self._ended_early is not None:
            raise RuntimeError(
                f"an exception ended {self._ended_early} of this engine early: gradients or states may be incomplete; "
                "build a new model and engine, and load a checkpoint"
            )

    def _check_trains(self) -> None:
        if not self.optimizer.trains:
            raise RuntimeError(NO_OPTIMIZER)
        if self._lost is not None:
            raise RuntimeError(
                f"parameter {self._lost!r} belongs to a later engine, so steps of this one would not reach it; if two "
                "engines share a module, give one of them a model that contains both, or freeze the module in one"
            )

    def keep_replaced(self, leave_converted: bool = False) -> None:
        """Train the values of tensors that a caller has put in place of parameters' ``data``, on every rank alike.

        Raises:
            RuntimeError: such a tensor has another shape, dtype or device, and ``leave_converted`` is not set.
        """
        if self._lost is not None:
            return
        whole = [state for state in self.states if not state.sharded]
        places = [(state, slot) for state in whole for slot in state.unit.slots]
        for state, slot in take_over(places, leave_converted):
            state.keep_edit(slot)
            self.read_cache.clear()
        self.read_cache.follow_edits()

    def lose(self, parameters: Set[int]) -> None:
        """A later engine has taken over these parameters, known by ``id``: this one must not train them any more."""
        slots = (slot for state in self.states for slot in state.unit.slots)
        self._lost = self._lost or next((slot.name for slot in slots if id(slot.parameter) in parameters), None)

    def _step(self) -> None:
        check = self.stepper.check_gradients(self.reducer.active, self.leaves * self.outcomes.scale)
        outcome = PendingOutcome(check)
        self.global_steps += 1
        # If the CPU updates, it waits for the gradients anyway, and need not move the states of a skipped step.
        if not (self.stores.steps_on_host and outcome.read().overflow):
            self.stepper.step(check, check.factors(self.config.gradient_clipping))
            if self.unsharder is not None:
                self.unsharder.renew()
        self.outcomes.add(outcome)
        if self.lr_scheduler is not None and not self.outcomes.overflow:
            self.lr_scheduler.step()

    def train(self, mode: bool = True) -> Engine:
        """Set the module to training mode."""
        self.module.train(mode)
        return self

    def eval(self) -> Engine:
        """Set the module to evaluation mode."""
        return self.train(False)

    # Reading

    @property
    def leaves(self) -> int:
        """The divisor of a step's sum of gradients: the ranks times the micro-steps, or the ranks (scale_wrt_gas)."""
        return self.ranks.world * self.accumulation.divisor

    @property
    def micro_steps(self) -> int:
        """The number of finished micro-steps."""
        return self.accumulation.finished

    @property
    def loss_scale(self) -> float:
        """The current loss scale; 1 except in fp16."""
        return self.outcomes.scale

    @property
    def scaler(self) -> LossScaler:
        """The loss scaler after the last step."""
        return self.outcomes.scaler

    @scaler.setter
    def scaler(self, scaler: LossScaler) -> None:
        self.outcomes.scaler = scaler

    @property
    def skipped_steps(self) -> int:
        """The number of steps that overflow skipped."""
        return self.outcomes.skipped_steps

    @skipped_steps.setter
    def skipped_steps(self, number: int) -> None:
        self.outcomes.skipped_steps = number

    def get_global_grad_norm(self) -> float | None:
        """The 2-norm of the last step's mean gradient before clipping, the same bits on every rank.

        None before the first step. Not finite if the step was skipped.
        """
        return self.outcomes.norm

    def resident(self) -> dict[str, list[Tensor]]:
        """The tensors that hold states on the device: ``parameters``, ``gradients``, ``optimizer``.

        The order is fixed, because digests depend on it: master weights come before the other optimizer states.
        """
        kept = [state for state in self.states if not self.stores.keeps_off_device(state.unit)]
        trained = [state for state in self.states if state.unit.trainable]
        stepped = [state for state in trained if not self.stores.steps_off_device(state.unit)]
        shards = [shard for state in kept if (shard := state.parameter_store.memory()) is not None]
        kept_here = [state.optimizer_store.memory(state.portion) for state in stepped]
        copies = [state.portion.has_master_copy for state in stepped]
        masters = [each["master"] for each, copy in zip(kept_here, copies, strict=True) if copy]
        return {
            "parameters": [*(parameter.detach() for parameter in self.module.parameters()), *shards],
            "gradients": [state.gradient for state in trained],
            "optimizer": [*masters, *(t for each in kept_here for name, t in each.items() if name != "master")],
        }

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the next ``step()`` applies the optimizer."""
        return self.accumulation.at_boundary

    def set_gradient_accumulation_boundary(self, is_boundary: bool | None) -> None:
        """Declare that the next ``backward()`` is the last one of its step, or is not; call it before each of them.

        From then on ``step()`` between boundaries is optional. None makes the engine count micro-steps again. All ranks
        make the same declaration.

        Raises:
            RuntimeError: the configuration leaves the boundary to ``step()``.
        """
        self.accumulation.declare(is_boundary)

    def destroy(self) -> None:
        """Remove the engine's hooks from the module, after the end of a save in the background, which is a collective.

        The engine cannot be used afterwards.
        """
        self.destroyed = True
        self._end_save()
        self.reducer.close()
        self._lookups.close()
        self._fast_paths.close()
        if self.hooks is not None:
            self.hooks.close()
        self.stores.close()
