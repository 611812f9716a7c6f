"""torch's ZeroRedundancyOptimizer on top of DDP: stage 1, the optimizer's state sharded by whole parameters."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from zerobench.oracles.optimizer import groups, read_state
from zerobench.oracles.rules import RULES, hyperparameters
from zerobench.subject import State, Theory
from zerobench.subjects import client_settings, ddp_settings, group_settings, plain_settings
from zerobench.subjects.plain import storages, summed, tensors_of
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.theory import peers

with warnings.catch_warnings():  # importing its package compiles scripts, and torch itself warns about that
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch.distributed.optim import ZeroRedundancyOptimizer

#: A way to save: the last rank consolidates the state.
LAST_RANK = "consolidate_state_dict(to=last rank)"


class TorchZero1(TorchDdp):
    """As DDP, but each parameter has one owner: only the owner keeps its state, updates it and broadcasts it."""

    name = "torch-zero1"
    stages = (1,)
    savings = (LAST_RANK,)
    settings = (
        *plain_settings.SETTINGS,
        *client_settings.CODE,
        *client_settings.OF_TORCH,
        *plain_settings.ADDITIONS,
        *group_settings.GROUPS,
        *ddp_settings.SETTINGS,
    )
    #: Each owner's parameters are views of one flat tensor, which is broadcast whole.
    parameter_views: ClassVar[bool] = False

    @classmethod
    def theory(cls) -> Theory:
        return peers.Zero1()

    def _optimizer(self) -> torch.optim.Optimizer:
        spec = self.scenario.optimizer
        grouped = groups(spec, self.masters)
        optimizer = ZeroRedundancyOptimizer(
            group_settings.with_others(plain_settings.first_groups(grouped, self.scenario), self.model, self.scenario),
            optimizer_class=RULES[spec.name].make,
            process_group=self.group,
            parameters_as_bucket_view=self.parameter_views,
            **hyperparameters(spec),
            **plain_settings.form(self.scenario),
        )
        plain_settings.add_groups(optimizer, grouped, self.scenario)
        return optimizer

    def _optimizer_state_dict(self) -> dict[str, Any]:
        assert isinstance(self.optimizer, ZeroRedundancyOptimizer)
        if self.scenario.saving == LAST_RANK:
            return self._from_last_rank()
        found: dict[str, Any] = {}
        for rank in range(dist.get_world_size(self.group)):  # each rank saves by itself; this clears the others'
            self.optimizer.consolidate_state_dict(to=rank)
            if rank == dist.get_rank(self.group):
                found = self.optimizer.state_dict()
        return found

    def _from_last_rank(self) -> dict[str, Any]:
        """The state that the last rank has consolidated and gives to the others."""
        assert isinstance(self.optimizer, ZeroRedundancyOptimizer)
        last = dist.get_world_size(self.group) - 1
        self.optimizer.consolidate_state_dict(to=last)
        state = [self.optimizer.state_dict() if dist.get_rank(self.group) == last else None]
        dist.broadcast_object_list(state, dist.get_global_rank(self.group, last), self.group)
        assert state[0] is not None
        return state[0]

    def optimizer_state(self) -> dict[str, State]:
        """Each owner's state added to the others' zeros."""
        states = read_state(self.scenario.optimizer, self._local.state, self.masters)
        return {name: {key: summed(t, self.group) for key, t in state.items()} for name, state in states.items()}

    def resident(self) -> dict[str, Sequence[Tensor]]:
        masters = self.masters.values() if self.masters is not self.working else ()
        return {**super().resident(), "optimizer": storages([*masters, *tensors_of(self._local.state)])}

    @property
    def _local(self) -> torch.optim.Optimizer:
        """The optimizer of the parameters this rank owns."""
        assert isinstance(self.optimizer, ZeroRedundancyOptimizer)
        local: torch.optim.Optimizer = self.optimizer.optim
        return local
