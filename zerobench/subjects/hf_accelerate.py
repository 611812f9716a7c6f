"""Hugging Face's Accelerate, driving torch's DistributedDataParallel: stage 0; the extra ``[peers]`` installs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from zerobench.scenario import Scenario
from zerobench.subject import State, Theory
from zerobench.subjects import ddp_settings, plain_settings
from zerobench.subjects.accelerated import (
    CODE,
    COUNTS_STEPS,
    EACH,
    TRIGGERED,
    Accelerated,
    Optimizers,
    arguments,
)
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.theory import peers


class AccelerateDdp(Accelerated, TorchDdp):
    """DDP with the client's loop of Accelerate."""

    name = "accelerate-ddp"
    takes_buffers_of_rank_0 = False  # DDP's constructor broadcasts no buffers without broadcast_buffers
    settings = (TRIGGERED, COUNTS_STEPS, EACH, ddp_settings.BUFFERS, *plain_settings.FORMS, *CODE)

    @classmethod
    def theory(cls) -> Theory:
        return peers.AccelerateDdp()

    def _accelerator(self, model: nn.Module, scenario: Scenario) -> Any:
        from accelerate import Accelerator, AutocastKwargs, DistributedDataParallelKwargs

        options = DistributedDataParallelKwargs(
            broadcast_buffers=ddp_settings.BUFFERS in scenario.settings,
            find_unused_parameters=self.looks_for_unused(scenario),
        )
        casts = AutocastKwargs(enabled=False)  # the client casts the model
        return Accelerator(**arguments(scenario), kwargs_handlers=[options, casts])

    def _prepare(self) -> None:
        prepared = [self.accelerator.prepare_optimizer(each) for each in self._of_client(self.optimizer)]
        self.optimizer = Optimizers.of(prepared)
        if self.masters is not self.working:
            self.accelerator.register_for_checkpointing(_Masters(self.masters))

    def _wrap(self) -> nn.Module:
        wrapped: nn.Module = self.accelerator.prepare_model(self.model)
        return wrapped


@dataclass(frozen=True)
class _Masters:
    """The client's master weights, which Accelerate saves beside the model."""

    masters: Mapping[str, nn.Parameter]

    def state_dict(self) -> State:
        return {name: p.detach() for name, p in self.masters.items()}

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        for name, p in self.masters.items():
            p.copy_(state[name])
