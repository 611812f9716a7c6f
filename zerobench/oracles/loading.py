"""Loading: the changes of a load in the oracle, which goes on as the new engine does (docs/reference/contract.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from zerobench.model_specs import Odd
from zerobench.oracles.optimizer import build_optimizer
from zerobench.oracles.scaler import scaler_of
from zerobench.subject import State
from zerobench.workload import models
from zerobench.workload.changes import resting
from zerobench.workload.client_values import given_back, saved_client_state
from zerobench.workload.data import DTYPES

if TYPE_CHECKING:
    from zerobench.oracles.canonical_trainer import Trainer


def load(trainer: Trainer, step: int) -> None:
    """Let a new engine go on with a trainer's state before ``step``."""
    given = saved_client_state(trainer.scenario, step)
    trainer.given_back = given_back(given, given)
    _forget_buffers(trainer)
    _freeze(trainer)
    trainer.progress.load()
    if trainer.scenario.loads == "all":
        return
    for name, value in loaded_masters(trainer, {name: p.detach() for name, p in trainer.masters.items()}).items():
        trainer.masters[name].data = value
    trainer.optimizer = build_optimizer(trainer.scenario.optimizer, trainer.masters, foreach=False)
    trainer.scaler = scaler_of(trainer.scaler.spec)


def loaded_masters(trainer: Trainer, masters: State) -> State:
    """The fp32 masters after a load of a part of the state: those that were saved, or the rounded weights."""
    if trainer.policies.masters_from == "original":
        return dict(masters)
    return {name: p.to(DTYPES[trainer.scenario.dtype]).to(p.dtype) for name, p in masters.items()}


def _forget_buffers(trainer: Trainer) -> None:
    """Buffers that are not persistent are those of the new model, which do not depend on its seed."""
    model = trainer.scenario.model
    if isinstance(model, Odd) and not model.persistent:
        trainer.leaves.buffers = [
            [b.clone() for b in models.build(trainer.scenario).buffers()] for _ in trainer.leaves.buffers
        ]


def _freeze(trainer: Trainer) -> None:
    """Train the parameters that the new engine trains, each with the loaded value."""
    if trainer.scenario.frozen_in == "all":
        return
    for parameter in trainer.resting:  # the new model has none that its client has frozen
        parameter.requires_grad_(True)
    names = [name for name, p in models.build(trainer.scenario).named_parameters() if not p.requires_grad]
    parameters = dict(trainer.leaves.model.named_parameters())
    for name in names:
        parameters[name].requires_grad_(not trainer.scenario.freezes(loaded=True))
    trainer.leaves.working = {name: p for name, p in parameters.items() if p.requires_grad}
    kept = trainer.masters
    trainer.masters = {
        name: kept[name] if name in kept else _master(trainer, p) for name, p in trainer.leaves.working.items()
    }
    trainer.resting = resting(trainer.leaves.model, trainer.scenario)


def _master(trainer: Trainer, parameter: nn.Parameter) -> nn.Parameter:
    """The master of a parameter that was frozen."""
    with torch.no_grad():
        return nn.Parameter(parameter.detach().to(trainer.device, trainer.dtypes.fold, copy=True))
