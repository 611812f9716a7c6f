"""torch's DistributedDataParallel with torch.optim: plain data parallelism, stage 0."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from zerobench.model_specs import Odd
from zerobench.scenario import Scenario
from zerobench.subject import Batch, State, Theory
from zerobench.subjects import client_settings, ddp_settings, group_settings, plain_settings
from zerobench.subjects.plain import Plain
from zerobench.subjects.saving import (
    DISTRIBUTED,
    load_own,
    load_sharded,
    not_distributed,
    save_own,
    save_sharded,
)
from zerobench.theory import peers

#: Documents the reduction, accumulation and recomputation of DDP.
_PAGE = "https://docs.pytorch.org/docs/2.13/generated/torch.nn.parallel.DistributedDataParallel.html"


class TorchDdp(Plain):
    """Gradients are all-reduced in the model's dtype, in DDP's own buckets; every rank keeps everything."""

    name = "torch-ddp"
    stages = (0,)
    resumes = True
    #: https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints: every rank loads one
    #: file. ZeroRedundancyOptimizer shards the consolidated state anew:
    #: https://docs.pytorch.org/docs/2.13/distributed.optim.html
    resumes_at_any_world = True
    takes_rank_0 = True  # it broadcasts the states of rank 0 when it is constructed
    takes_buffers_of_rank_0 = True
    policies = replace(Plain.policies, buffers_with=ddp_settings.BUFFERS)
    loads_parts = True
    savings: ClassVar[tuple[str, ...]] = (DISTRIBUTED,)
    settings = (
        *plain_settings.SETTINGS,
        *client_settings.CODE,
        *client_settings.OF_TORCH,
        *group_settings.GROUPS,
        plain_settings.SPARSE,
        *ddp_settings.SETTINGS,
        *ddp_settings.OF_OPTIMIZER,
    )
    #: Arguments of DistributedDataParallel; by default it looks for unused parameters only if there may be some.
    bucket_view: ClassVar[bool] = True
    static_graph: ClassVar[bool] = False
    find_unused: ClassVar[bool | None] = None
    #: Of a Scenario in which the client averages the parameters after its own steps.
    averager: ddp_settings.Averager | None = None
    #: The updates so far: the client goes on with a copy after the first.
    updates = 0

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if (reason := super().unsupported(scenario)) is not None:
            return reason
        if (wire := scenario.communication_dtype or scenario.dtype) != cls.wire(scenario):
            return f"{cls.name} reduces in {cls.wire(scenario)}, not in {wire}: {_PAGE}"
        if scenario.accumulator_dtype not in (None, scenario.dtype):
            return f"{cls.name} accumulates in {scenario.dtype}, not in {scenario.accumulator_dtype}: {_PAGE}"
        if group_settings.FROZEN in scenario.settings and scenario.dtype != "fp32":
            return f"the client's master weights are of parameters that train: {_PAGE}"
        if scenario.ranks_differ and scenario.dtype != "fp32":
            return f"DDP broadcasts its parameters, and not the client's master weights: {_PAGE}"
        looks = cls.looks_for_unused(scenario)
        return (
            ddp_settings.unsupported(scenario, looks_for_unused=looks, static_graph=cls.static_graph)
            or not_distributed(scenario)
            or plain_settings.unsupported_sparse(scenario)
            or plain_settings.unsupported_sparse_norm(scenario)
            or _unsupported_sum(scenario)
            or cls._unsupported_model(scenario)
        )

    @classmethod
    def _unsupported_model(cls, scenario: Scenario) -> str | None:
        """A model whose graph changes, or whose recomputation DDP's bookkeeping does not support."""
        odd = scenario.model if isinstance(scenario.model, Odd) else Odd()
        if cls.static_graph:
            changes = odd.by_route or bool(scenario.frozen_steps) or _freezes(scenario)
            return f"static_graph demands that every leaf use the same parameters: {_PAGE}" if changes else None
        return _unsupported_recomputation(scenario, cls.looks_for_unused(scenario))

    @classmethod
    def wire(cls, scenario: Scenario) -> str:
        """The dtype in which gradients are reduced."""
        return scenario.dtype

    @classmethod
    def theory(cls) -> Theory:
        return peers.Ddp()

    @classmethod
    def looks_for_unused(cls, scenario: Scenario) -> bool:
        """Whether DDP walks the graph of each forward for parameters that it does not use."""
        if cls.find_unused is not None:
            return cls.find_unused
        if ddp_settings.may_rest(scenario):
            return True
        return isinstance(scenario.model, Odd) and scenario.model.leaves_some_out

    @classmethod
    def needs_whole_world(cls, scenario: Scenario) -> bool:
        return super().needs_whole_world(scenario) or bool(
            {ddp_settings.ALONE, ddp_settings.COPIED}.intersection(scenario.settings)
        )

    def _wrap(self) -> nn.Module:
        plain_settings.make_sparse(self.model, self.scenario)
        self.averager = ddp_settings.averager(self.scenario, self.group)
        reduced_over = ddp_settings.own_group(self.scenario, self.group)
        module = DistributedDataParallel(
            self.model,
            **ddp_settings.arguments(self.scenario, self.model, reduced_over),
            gradient_as_bucket_view=self.bucket_view,
            static_graph=self.static_graph,
            find_unused_parameters=self.looks_for_unused(self.scenario),
        )
        # the argument for this warns, and leaves each rank the buffers that it was built with
        module.broadcast_buffers = ddp_settings.BUFFERS in self.scenario.settings
        ddp_settings.hook(module, self.scenario, self.group)
        return module

    def _optimizer(self) -> torch.optim.Optimizer:
        return ddp_settings.averaged(super()._optimizer(), self.scenario, self.group)

    def micro_step(self, batch: Batch) -> Tensor:
        if ddp_settings.COPIED in self.scenario.settings and self.updates == 1 and self.micro_steps == 0:
            self._copy()
        assert isinstance(self.module, DistributedDataParallel)
        with ddp_settings.joined(self.module, self.scenario):
            return super().micro_step(batch)

    def _copy(self) -> None:
        """Go on with a copy of all that trains."""
        trained = self.module, self.model, self.working, self.masters, self.optimizer
        self.module, self.model, self.working, self.masters, self.optimizer = copy.deepcopy(trained)

    def _step(self, norm: Tensor | None) -> bool:
        self.updates += 1
        skipped = super()._step(norm)
        if self.averager is not None:
            self.averager.average_parameters(self.model.parameters())
        return skipped

    def gradients(self) -> State:
        found = super().gradients()
        return found if self.averager is None else ddp_settings.means(found, self.working, self.group)

    def _synchronizing(self, needed: bool) -> AbstractContextManager[None]:
        assert isinstance(self.module, DistributedDataParallel)
        return nullcontext() if needed else self.module.no_sync()

    def save(self, directory: Path) -> None:
        self._save_scale(directory)
        if self.scenario.saving == DISTRIBUTED:
            save_sharded(self.module, self.optimizer, directory, self.group)
            return
        masters = {name: each.detach() for name, each in self.masters.items()}
        state = {"model": self.model.state_dict(), "masters": masters, "optimizer": self._optimizer_state_dict()}
        save_own(state, directory, self.group)

    def load(self, directory: Path) -> None:
        self._load_scale(directory)
        if self.scenario.saving == DISTRIBUTED:
            load_sharded(self.module, self.optimizer, directory, self.group, self.scenario)
            return
        state = load_own(directory, self.group)
        self.model.load_state_dict(state["model"])
        for name, each in self.masters.items():
            each.detach().copy_(state["masters"][name])
        if self.scenario.loads == "all":
            self.optimizer.load_state_dict(state["optimizer"])

    def _optimizer_state_dict(self) -> dict[str, Any]:
        """The whole state of the optimizer; a collective."""
        return self.optimizer.state_dict()


def _freezes(scenario: Scenario) -> bool:
    """Whether the client freezes a block in a backward of zero."""
    return bool(set(client_settings.FROZEN).intersection(scenario.settings))


def _unsupported_sum(scenario: Scenario) -> str | None:
    """Every all-reduce except the first of a step averages values again that were averaged before."""
    again = scenario.reduction == "micro_step" and scenario.accumulation > 1
    if scenario.data == "dyadic" and again and scenario.world & (scenario.world - 1):
        return f"without no_sync DDP averages a mean over {scenario.world} ranks again, which rounds: {_PAGE}"
    return None


def _unsupported_recomputation(scenario: Scenario, looks_for_unused: bool) -> str | None:
    """Reentrant recomputation runs a backward inside the backward; DDP's bookkeeping does not support that."""
    if scenario.model.recompute != "reentrant":
        return None
    if looks_for_unused:
        return f"DDP looks for unused parameters under reentrant recomputation only with static_graph: {_PAGE}"
    ties_head = client_settings.HEAD in scenario.settings and scenario.model.shares
    if scenario.forwards == "two" or ties_head or (isinstance(scenario.model, Odd) and scenario.model.repeats):
        return f"DDP uses a parameter again beside a reentrant recomputation only with static_graph: {_PAGE}"
    return None
