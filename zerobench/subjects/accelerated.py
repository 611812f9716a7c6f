"""The client's loop with Hugging Face's Accelerate, whichever engine Accelerate wraps the model in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.extras import is_installed
from zerobench.model_specs import Odd
from zerobench.oracles.optimizer import scheduler_of
from zerobench.scenario import Scenario
from zerobench.subject import Batch, Outcome
from zerobench.subjects import client_settings, plain_settings
from zerobench.subjects.plain import Plain
from zerobench.workload.forwards import loss_of

#: The attributes of Accelerate's singletons, by class.
_States = dict[str, dict[str, Any]]

_PAGE = "https://huggingface.co/docs/accelerate/v1.15.0/en/package_reference/accelerator"
_SCHEDULER = "https://huggingface.co/docs/accelerate/v1.15.0/en/package_reference/torch_wrappers"
_AMP = "https://docs.pytorch.org/docs/2.13/notes/amp_examples.html#working-with-multiple-models-losses-and-optimizers"

#: A setting: the forward is in ``no_sync``, and the client asks for the reduction before the backward.
TRIGGERED = "trigger_sync_in_backward"
#: A setting: a scheduler counts steps. Otherwise it counts the micro-steps of all ranks, as its documentation says:
#: "scheduler lengths should not be changed accordingly, Accelerate will always step the scheduler to account for it".
COUNTS_STEPS = "split_batches and adjust_scheduler=False"
#: A setting: each parameter group has an optimizer of its own, as the parts of a model that a client trains in turns.
EACH = "an optimizer for each group"
#: A way to save.
STATE = "save_state"
#: Settings of the client's code.
CODE = (
    plain_settings.FAILED,
    plain_settings.EVALUATED,
    plain_settings.IN_EVALUATION,
    plain_settings.BOXED,
    client_settings.INPUTS,
    client_settings.KEPT,
)
#: The file of the scheduler's state, if the client saves it.
_OWN = "scheduler.pt"


class Accelerated(Plain):
    """The caller's loop under ``accumulate``; Accelerate divides the loss, wraps the model and leaves steps out.

    It reads the ranks from the environment, so its group has every process. Its states are singletons of the process
    (https://huggingface.co/docs/accelerate/v1.15.0/en/package_reference/state), so each subject puts its own in place
    while it computes. The subject of an engine derives from this class and from the engine's own subject; it makes the
    ``Accelerator`` and lets it prepare the model and the optimizer.
    """

    distribution = "accelerate"
    whole_world = True
    steps_scheduler = True
    savings: ClassVar[tuple[str, ...]] = (STATE,)

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if not is_installed("accelerate"):
            return "Accelerate is not installed; pip install 'zerobench[peers]'"
        if COUNTS_STEPS in scenario.settings and not scenario.engine_schedules:
            return f"{COUNTS_STEPS} is of a scheduler: {_SCHEDULER}"
        if EACH in scenario.settings and (reason := _unsupported_several(scenario)) is not None:
            return reason
        if scenario.saving == STATE and scenario.loads_part:
            return f"{STATE} and load_state take the whole state: {_PAGE}"
        if scenario.saving == STATE and isinstance(scenario.model, Odd) and scenario.model.buffers:
            return f"{STATE} saves the model of one rank, and each rank has its own buffers: {_PAGE}"
        return super().unsupported(scenario)

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        self._states: _States = {}
        self.scheduler: Any = None
        with self._own_states():
            self.accelerator = self._accelerator(model, scenario)
            super().__init__(model, scenario, group)
            self._prepare()
            if self.scheduler is not None:
                self.scheduler = self.accelerator.prepare_scheduler(self.scheduler)
        if scenario.dtype == "fp16":
            self.scaler, self.scale = self._own_scaler, self._own_scaler.scale

    def _accelerator(self, model: nn.Module, scenario: Scenario) -> Any:
        """The ``Accelerator`` of the engine."""
        raise NotImplementedError

    def _prepare(self) -> None:
        """Let Accelerate prepare what it has not prepared with the model."""

    def _of_client(self, optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
        """The client's optimizers before they are prepared: the one, or one for each of its groups. The scheduler and
        the loss scaler are made for the one."""
        if self.scenario.dtype == "fp16":
            self._scale_losses(optimizer)
        make = scheduler_of(self.scenario, unit=1 if COUNTS_STEPS in self.scenario.settings else self.scenario.leaves)
        self.scheduler = None if make is None else make(optimizer)
        if EACH not in self.scenario.settings:
            return [optimizer]
        return [self._of_groups([group]) for group in optimizer.param_groups]

    def _scale_losses(self, optimizer: torch.optim.Optimizer) -> None:
        """Give Accelerate its loss scaler, which it makes itself on an accelerator alone."""
        self._own_scaler = plain_settings.grad_scaler(self.scenario, optimizer, self.group, sharded=False)
        self.accelerator.scaler, self.accelerator.native_amp = self._own_scaler.scaler, True

    @contextmanager
    def _own_states(self) -> Iterator[None]:
        """Inside, Accelerate's singletons are those of this subject."""
        before = _exchanged(self._states)
        try:
            yield
        finally:
            self._states = _exchanged(before)

    def micro_step(self, batch: Batch) -> Tensor:
        ends_early = self.micro_steps + 1 == self.boundary < self.scenario.accumulation
        with self._own_states():
            [loss] = [self._train(each) for each in (_end_of_epoch(batch) if ends_early else [batch])]
        return loss

    def _train(self, batch: Batch) -> Tensor:
        with self.accelerator.accumulate(self.module):
            if self.micro_steps == 0:
                self.scale = self._next_scale()
                self._zero_grad()
            client_settings.before_micro_step(self.module, self.model, batch, self.scenario)
            self.micro_steps += 1
            with ExitStack() as reduced:
                if TRIGGERED in self.scenario.settings:
                    reduced.enter_context(self.accelerator.no_sync(self.module))
                reduced.enter_context(plain_settings.mode(self.module, self.scenario))
                loss = loss_of(self.scenario, self.module, batch)
                loss = client_settings.with_kept(loss, self.module, self.scenario)
                plain_settings.after_forward(self.module, self.module, batch, self.scenario)
                if TRIGGERED in self.scenario.settings and self._reduces:
                    reduced.enter_context(self.accelerator.trigger_sync_in_backward(self.module))
                self.accelerator.backward(loss, inputs=client_settings.inputs(self.working.values(), self.scenario))
            if not self.accelerator.sync_gradients:
                self._schedule()
        return loss.detach()

    @property
    def _reduces(self) -> bool:
        """Whether gradients are reduced in this micro-step."""
        return self.scenario.reduction == "micro_step" or bool(self.accelerator.sync_gradients)

    def _schedule(self) -> None:
        """The client steps the scheduler after each micro-step, of which Accelerate makes steps of the schedule."""
        if self.scheduler is not None:
            self.scheduler.step()

    def step(self) -> Outcome:
        norm, skipped = self._update()
        return Outcome(None if norm is None else float(norm), skipped, self.scale)

    @torch.no_grad()
    def _update(self) -> tuple[Tensor | None, bool]:
        self.micro_steps = 0
        with self._own_states():
            self._give_gradients()
            norm = self._clip()
            self.optimizer.step()
            self._schedule()
            skipped = bool(self.accelerator.optimizer_step_was_skipped)
        if self.scaler is not None and (static := self.scenario.loss_scale.static):
            self.scaler.scaler.update(static)
        if self.masters is not self.working:
            self._publish()
        return norm, skipped

    def _clip(self) -> Tensor | None:
        if not self.scenario.clip:
            return None
        limit, norm_type = self.scenario.clip, float(self.scenario.norm_type)
        return self._full(self.accelerator.clip_grad_norm_(self.masters.values(), limit, norm_type))

    def _keep_static_scale(self) -> None:
        """Give the scaler the client's scale, if that does not move, and not a saved one."""
        if self.scaler is not None and (static := self.scenario.loss_scale.static):
            self.scaler.scaler.load_state_dict({**self.scaler.scaler.state_dict(), "scale": static})

    def save(self, directory: Path) -> None:
        with self._own_states():
            if self.scenario.saving == STATE:
                self.accelerator.save_state(str(directory))
                self.accelerator.wait_for_everyone()  # for rank 0, which alone writes the model
                return
            if self.scheduler is not None and dist.get_rank() == 0:
                torch.save(self.scheduler.state_dict(), directory / _OWN)
            super().save(directory)

    def load(self, directory: Path) -> None:
        with self._own_states():
            if self.scenario.saving == STATE:
                self.accelerator.load_state(str(directory))
                self.accelerator.step = 0  # a step begins: reports/findings/accelerate/accumulation-after-load
                self._keep_static_scale()
                return
            super().load(directory)
            if self.scheduler is not None and self.scenario.loads != "model":
                self.scheduler.load_state_dict(torch.load(directory / _OWN, weights_only=True))


@dataclass(frozen=True)
class Optimizers:
    """Several optimizers of Accelerate's, which the client steps one after the other."""

    each: Sequence[Any]

    @classmethod
    def of(cls, each: Sequence[Any]) -> Any:
        """The only one, or several as one."""
        return each[0] if len(each) == 1 else cls(each)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for one in self.each for group in one.param_groups]

    @property
    def state(self) -> dict[Tensor, Any]:
        return {p: values for one in self.each for p, values in one.state.items()}

    def step(self) -> None:
        for one in self.each:
            one.step()

    def state_dict(self) -> dict[str, Any]:
        return {"each": [one.state_dict() for one in self.each]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for one, of_one in zip(self.each, state["each"], strict=True):
            one.load_state_dict(of_one)


def _unsupported_several(scenario: Scenario) -> str | None:
    """The reason against several optimizers, or None."""
    spec, scale = scenario.optimizer, scenario.loss_scale
    if scenario.engine_schedules or not (spec.second_group or spec.third_group):
        return f"{EACH} is of several groups, without a scheduler of them all"
    if scenario.dtype == "fp16" and (scenario.freezes_half or (scale.static or 2.0**scale.initial_power) >= 2**10):
        return f"a GradScaler leaves out the steps of the optimizers alone whose gradients overflow: {_AMP}"
    return None


def _end_of_epoch(batch: Batch) -> Iterable[Batch]:
    """Accelerate's data loader of this batch alone: a step ends with the last batch of a data loader."""
    from accelerate.data_loader import DataLoaderShard

    found: Iterable[Batch] = DataLoaderShard([batch], batch_size=None, generator=torch.Generator())
    return found


def _exchanged(states: _States) -> _States:
    """Put the attributes of Accelerate's singletons in place; returns those that were there."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    before = {}
    for each in (AcceleratorState, GradientState, PartialState):
        before[each.__name__] = dict(each._shared_state)
        each._shared_state.clear()
        each._shared_state.update(states.get(each.__name__, {}))
    return before


def arguments(scenario: Scenario) -> dict[str, Any]:
    """What the ``Accelerator`` of a Scenario takes, whichever engine it drives; sets the ranks' environment."""
    from accelerate.utils import DataLoaderConfiguration, GradientAccumulationPlugin

    rank, world = dist.get_rank(), dist.get_world_size()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}  # it demands them, though the group is there
    counts_steps = COUNTS_STEPS in scenario.settings
    plugin = GradientAccumulationPlugin(
        num_steps=scenario.accumulation,
        adjust_scheduler=not counts_steps,
        sync_each_batch=scenario.reduction == "micro_step",
    )
    return {
        "cpu": scenario.device == "cpu",
        "gradient_accumulation_plugin": plugin,
        "dataloader_config": DataLoaderConfiguration(split_batches=counts_steps),
        "mixed_precision": "fp16" if scenario.dtype == "fp16" else "no",
    }
