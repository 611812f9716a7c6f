"""Hugging Face's Accelerate, driving torch's DistributedDataParallel: stage 0; the extra ``[peers]`` installs it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.model_specs import Odd
from zerobench.scenario import Scenario
from zerobench.subject import Batch, Outcome, Theory
from zerobench.subjects import plain_settings
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.theory import peers
from zerobench.workload.forwards import loss_of

#: The attributes of Accelerate's singletons, by class.
_States = dict[str, dict[str, Any]]

_PAGE = "https://huggingface.co/docs/accelerate/v1.15.0/en/package_reference/accelerator"


#: A setting: gradients are reduced in each micro-step.
EACH_BATCH = "sync_each_batch"
#: A way to save.
STATE = "save_state"


class AccelerateDdp(TorchDdp):
    """The caller's loop under ``accumulate``; Accelerate divides the loss, wraps the model and leaves steps out.

    It reads the ranks from the environment, so its group has every process. Its states are singletons of the process
    (https://huggingface.co/docs/accelerate/v1.15.0/en/package_reference/state), so each subject puts its own in place
    while it computes.
    """

    name = "accelerate-ddp"
    distribution = "accelerate"
    whole_world = True
    takes_buffers_of_rank_0 = False  # DDP's constructor broadcasts no buffers without broadcast_buffers
    settings = (EACH_BATCH, *plain_settings.FORMS)
    savings = (STATE,)

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if importlib.util.find_spec("accelerate") is None:
            return "Accelerate is not installed; pip install 'zerobench[peers]'"
        if scenario.dtype != "fp32":
            return f"Accelerate casts operations, not the model, in 16 bits: {_PAGE}"
        each_batch = EACH_BATCH in scenario.settings
        if scenario.accumulation > 1 and (scenario.reduction == "micro_step") != each_batch:
            return f"Accelerate reduces in each micro-step with {EACH_BATCH} alone: {_PAGE}"
        if scenario.saving == STATE and scenario.loads_part:
            return f"{STATE} and load_state take the whole state: {_PAGE}"
        if scenario.saving == STATE and isinstance(scenario.model, Odd) and scenario.model.buffers:
            return f"{STATE} saves the model of one rank, and each rank has its own buffers: {_PAGE}"
        return super().unsupported(scenario)

    @classmethod
    def theory(cls) -> Theory:
        return peers.AccelerateDdp()

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        self._states: _States = {}
        with self._own_states():
            self.accelerator = _accelerator(scenario, self.looks_for_unused(scenario))
            super().__init__(model, scenario, group)
            self.optimizer = self.accelerator.prepare_optimizer(self.optimizer)

    @contextmanager
    def _own_states(self) -> Iterator[None]:
        """Inside, Accelerate's singletons are those of this subject."""
        before = _exchanged(self._states)
        try:
            yield
        finally:
            self._states = _exchanged(before)

    def _wrap(self) -> nn.Module:
        wrapped: nn.Module = self.accelerator.prepare_model(self.model)
        return wrapped

    def micro_step(self, batch: Batch) -> Tensor:
        ends_early = self.micro_steps + 1 == self.boundary < self.scenario.accumulation
        with self._own_states():
            [loss] = [self._train(each) for each in (_end_of_epoch(batch) if ends_early else [batch])]
        return loss

    def _train(self, batch: Batch) -> Tensor:
        with self.accelerator.accumulate(self.module):
            if self.micro_steps == 0:
                self._zero_grad()
            self.micro_steps += 1
            loss = loss_of(self.scenario, self.module, batch)
            self.accelerator.backward(loss)
        return loss.detach()

    def step(self) -> Outcome:
        norm, skipped = self._update()
        return Outcome(None if norm is None else float(norm), skipped)

    @torch.no_grad()
    def _update(self) -> tuple[Tensor | None, bool]:
        self.micro_steps = 0
        with self._own_states():
            norm = self._clip()
            self.optimizer.step()
            return norm, bool(self.accelerator.optimizer_step_was_skipped)

    def _clip(self) -> Tensor | None:
        if not self.scenario.clip:
            return None
        limit, norm_type = self.scenario.clip, float(self.scenario.norm_type)
        norm: Tensor = self.accelerator.clip_grad_norm_(self.masters.values(), limit, norm_type)
        return norm

    def save(self, directory: Path) -> None:
        with self._own_states():
            if self.scenario.saving == STATE:
                self.accelerator.save_state(str(directory))
            else:
                super().save(directory)

    def load(self, directory: Path) -> None:
        with self._own_states():
            if self.scenario.saving == STATE:
                self.accelerator.load_state(str(directory))
                self.accelerator.step = 0  # a step begins: reports/findings/accelerate/accumulation-after-load
            else:
                super().load(directory)


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


def _accelerator(scenario: Scenario, looks_for_unused: bool) -> Any:
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.utils import GradientAccumulationPlugin

    rank, world = dist.get_rank(), dist.get_world_size()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}  # it demands them, though the group is there
    options = DistributedDataParallelKwargs(broadcast_buffers=False, find_unused_parameters=looks_for_unused)
    plugin = GradientAccumulationPlugin(
        num_steps=scenario.accumulation, sync_each_batch=EACH_BATCH in scenario.settings
    )
    return Accelerator(
        cpu=scenario.device == "cpu",
        gradient_accumulation_plugin=plugin,
        kwargs_handlers=[options],
    )
