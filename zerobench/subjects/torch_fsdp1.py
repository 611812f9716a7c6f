"""torch's FSDP1 (``FullyShardedDataParallel``) on each block and the root: stages 0, 2 and 3."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import (
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)

from zerobench.model_specs import Odd
from zerobench.oracles.optimizer import groups
from zerobench.oracles.rules import state_keys
from zerobench.ranks import mesh
from zerobench.scenario import Scenario
from zerobench.subject import Batch, Policies, State
from zerobench.subjects import client_settings, fsdp1_saving, fsdp1_settings, group_settings, plain_settings
from zerobench.subjects.device_mesh import fsdp_mesh
from zerobench.subjects.plain import Plain, storages, tensors_of
from zerobench.subjects.saving import OF_RANK_0, SHARDED_SAVINGS, load_sharded, not_saved, save_sharded
from zerobench.workload.data import DTYPES
from zerobench.workload.models.blocks import block_groups, layers_of

_PAGE = "https://docs.pytorch.org/docs/2.13/fsdp.html"
#: One group, or with replicas two.
Groups = dist.ProcessGroup | tuple[dist.ProcessGroup, dist.ProcessGroup]
#: Without synchronization the hook returns before it casts the gradient, so that autograd accumulates.
_NO_SYNC = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/_runtime_utils.py"
#: In the names of parameters, the place of a module that is wrapped.
_PREFIX = "_fsdp_wrapped_module."
_SOURCE = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/_flat_param.py"


class TorchFsdp1(Plain):
    """Each block's parameters are one flat parameter, sharded evenly; the shards are the fp32 masters.

    A parameter keeps its name (``use_orig_params``); between steps it is a view into this rank's shard, maybe empty.
    FSDP1 announces its end, and each of its choices, as warnings, which are ignored here.
    """

    name = "torch-fsdp1"
    stages: ClassVar[tuple[int, ...]] = (0, 2, 3)
    policies = Policies(casts="each_use")  # its parameters are views, of which autocast keeps no copies
    hybrid = True
    takes_rank_0 = True  # with sync_module_states
    takes_buffers_of_rank_0 = True
    resumes = True
    loads_parts = True
    resumes_at_any_world = True  # "load-time resharding": see zerobench/subjects/saving.py
    settings = (
        plain_settings.ZEROS,
        *plain_settings.FORMS,
        *plain_settings.SCALERS,
        *plain_settings.MOMENTS,
        *plain_settings.CODE,
        plain_settings.HOOKED_AFTER,
        *client_settings.CODE,
        client_settings.DIFFERENTIATED,
        *client_settings.OF_TORCH,
        *group_settings.GROUPS,
        client_settings.CAST,
        *fsdp1_settings.SETTINGS,
    )
    scales_shards = True
    adds_reduced = True
    savings = (*SHARDED_SAVINGS, *fsdp1_saving.SAVINGS)
    #: Gather the next unit's parameters, in the order of the first forward, before this unit's forward.
    prefetches: ClassVar[bool] = False
    #: A parameter keeps its name and is a view into the flat one; otherwise the flat one is the module's only one.
    keeps_parameters: ClassVar[bool] = True
    #: By stage; with replicas of the shards, the hybrid one.
    strategies: ClassVar[Mapping[int, ShardingStrategy]] = {
        0: ShardingStrategy.NO_SHARD,
        2: ShardingStrategy.SHARD_GRAD_OP,
        3: ShardingStrategy.FULL_SHARD,
    }
    hybrids: ClassVar[Mapping[int, ShardingStrategy]] = {
        2: ShardingStrategy._HYBRID_SHARD_ZERO2,
        3: ShardingStrategy.HYBRID_SHARD,
    }

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if (reason := super().unsupported(scenario)) is not None:
            return reason
        if scenario.accumulator_dtype not in (None, "fp32"):
            return f"{cls.name} accumulates in fp32, not in {scenario.accumulator_dtype}: {_PAGE}"
        rounds = scenario.dtype != "fp32" and scenario.reduction == "boundary" and scenario.accumulation > 1
        if scenario.accumulator_dtype == "fp32" and rounds:
            return f"{cls.name} accumulates in the parameters' dtype in no_sync: {_NO_SYNC}"
        if scenario.replicate > 1 and not scenario.stage:
            return f"FSDP1 has no shards to replicate with NO_SHARD: {_PAGE}"
        model = scenario.model
        if isinstance(model, Odd) and model.scalar:
            return f"FSDP1 refuses a scalar parameter: {_SOURCE}"
        has_layers = fsdp1_settings.LAYERS in scenario.settings
        if isinstance(model, Odd) and model.part_alone and (model.shares or not has_layers):
            return f"FSDP1 does not support the forward of a submodule of an FSDP instance: {_PAGE}"
        return fsdp1_settings.unsupported(scenario) or not_saved(scenario)

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        self.named = {p: name for name, p in model.named_parameters()}
        self.groups = _groups(scenario, group)
        with warnings.catch_warnings(action="ignore"):
            super().__init__(model, scenario, group)
        self.working = self.masters = self._trained()

    @classmethod
    def needs_whole_world(cls, scenario: Scenario) -> bool:
        return super().needs_whole_world(scenario) or scenario.saving in OF_RANK_0

    def _take_masters(self) -> dict[str, nn.Parameter]:
        return {}

    def _trained(self) -> dict[str, nn.Parameter]:
        return {self.named[p]: p for p in self.model.parameters() if p.requires_grad}

    def _wrap(self) -> nn.Module:
        self.filling = fsdp1_settings.without_memory(self.model, self.scenario)
        self.ignored = fsdp1_settings.ignored(self.model, self.scenario)
        wrapped = self._wrapped()
        if self.filling:
            self.named = {p: name.replace(_PREFIX, "") for name, p in wrapped.named_parameters()}
        fsdp1_settings.set_up(wrapped, self.scenario, self.group)
        return wrapped

    def _wrapped(self) -> FullyShardedDataParallel:
        blocks = self.model.get_submodule("blocks")
        assert isinstance(blocks, nn.ModuleList)
        # a shared parameter must have one FSDP instance, here the root
        alone = [group[0] for group in block_groups(self.model) if len(group) == 1]
        if fsdp1_settings.ROOT_ALONE in self.scenario.settings:
            alone = []
        for block in alone if fsdp1_settings.LAYERS in self.scenario.settings else ():
            self._wrap_layers(block)
        sharded = {block: self._sharded(block) for block in alone}
        for place, block in enumerate(blocks):  # the list may have a block twice
            blocks[place] = sharded.get(block, block)
        return self._sharded(self.model)

    def _wrap_layers(self, block: nn.Module) -> None:
        for name, layer in layers_of(block):
            parent, _, own = name.rpartition(".")
            setattr(block.get_submodule(parent), own, self._sharded(layer))

    def _sharded(self, module: nn.Module) -> FullyShardedDataParallel:
        scenario = self.scenario
        return FullyShardedDataParallel(
            module,
            **self._where(),
            sharding_strategy=(self.hybrids if scenario.replicate > 1 else self.strategies)[scenario.stage],
            cpu_offload=CPUOffload(self.offloads),
            mixed_precision=MixedPrecision(
                param_dtype=None if scenario.dtype == "fp32" else DTYPES[scenario.dtype],  # it casts inputs, too
                reduce_dtype=fsdp1_settings.reduce_dtype(scenario),
                cast_forward_inputs=module is self.model or fsdp1_settings.INPUTS not in scenario.settings,
            ),
            **self.filling,
            **self.ignored,
            device_id=torch.cuda.current_device() if scenario.device == "cuda" else torch.device("cpu"),
            use_orig_params=self.keeps_parameters,
            **{"forward_prefetch": self.prefetches, **fsdp1_settings.arguments(scenario)},
        )

    def _where(self) -> dict[str, Any]:
        """The argument with the ranks."""
        if fsdp1_settings.MESH not in self.scenario.settings:
            return {"process_group": self.groups}
        return {"device_mesh": fsdp_mesh(self.group, self.scenario)}

    def _optimizer(self) -> torch.optim.Optimizer:
        self.masters = self._trained()
        with self._whole():  # the groups depend on the parameters' dimensions
            grouped = groups(self.scenario.optimizer, self.masters)
        return self._of_groups(grouped)

    @contextmanager
    def _whole(self, gradients: bool = False) -> Iterator[None]:
        """Inside, every parameter is whole on every rank, in fp32."""
        with (
            warnings.catch_warnings(action="ignore"),
            FullyShardedDataParallel.summon_full_params(self.module, writeback=False, with_grads=gradients),
        ):
            yield

    def _synchronizing(self, needed: bool) -> AbstractContextManager[None]:
        assert isinstance(self.module, FullyShardedDataParallel)
        return nullcontext() if needed else self.module.no_sync()

    def micro_step(self, batch: Batch) -> Tensor:
        with warnings.catch_warnings(action="ignore"):
            return super().micro_step(batch)

    def _update(self) -> tuple[Tensor | None, bool]:
        assert isinstance(self.module, FullyShardedDataParallel)
        with warnings.catch_warnings(action="ignore"):
            fsdp1_settings.before_step(self.module, self.scenario)
            found = super()._update()
            fsdp1_settings.after_step(self.module, self.scenario)
        return found

    def _clip(self) -> Tensor | None:
        if not self.scenario.clip and self.scenario.dtype != "fp16":
            return None
        assert isinstance(self.module, FullyShardedDataParallel)
        with warnings.catch_warnings(action="ignore"):
            return self.module.clip_grad_norm_(self.scenario.clip or math.inf, float(self.scenario.norm_type))

    @torch.no_grad()
    def set_parameters(self, values: State) -> None:
        with warnings.catch_warnings(action="ignore"), FullyShardedDataParallel.summon_full_params(self.module):
            for name, value in values.items():
                self.working[name].copy_(value)

    def parameters(self) -> State:
        with self._whole():
            return {name: p.detach().clone() for name, p in self.working.items()}

    def model_parameters(self) -> State:
        dtype = DTYPES[self.scenario.dtype]
        with self._whole():
            return {self.named[p]: p.detach().clone().to(dtype) for p in self.model.parameters()}

    def gradients(self) -> State:
        with self._whole(gradients=True):
            # a frozen parameter shows zeros here if others of its flat parameter train; the optimizer sees no gradient
            found = {name: p.grad for name, p in self.working.items() if p.grad is not None and p.requires_grad}
            return {name: grad.detach().float() / self.scale for name, grad in found.items()}

    def optimizer_state(self) -> dict[str, State]:
        keys = state_keys(self.scenario.optimizer)
        empty = {name: {key: torch.zeros_like(p) for key in keys} for name, p in self.parameters().items()}
        for key in keys:
            for name, values in self._whole_states(key).items():
                if name in empty:  # an optimizer may have states of frozen parameters
                    empty[name] |= values
        return empty

    def _whole_states(self, key: str) -> dict[str, State]:
        """One state of each parameter that has it: several at once would share one memory on a CPU
        (reports/findings/fsdp1/states-share-memory)."""
        own = self.optimizer.state_dict()
        own["state"] = {number: {k: v for k, v in each.items() if k == key} for number, each in own["state"].items()}
        whole = FullStateDictConfig(rank0_only=False), FullOptimStateDictConfig(rank0_only=False)
        with (
            warnings.catch_warnings(action="ignore"),
            FullyShardedDataParallel.state_dict_type(self.module, StateDictType.FULL_STATE_DICT, *whole),
        ):
            found = FullyShardedDataParallel.optim_state_dict(self.module, self.optimizer, own, self.group)["state"]
        return {name: {key: each[key]} for name, each in found.items() if key in each}

    def save(self, directory: Path) -> None:
        self._save_scale(directory)
        with warnings.catch_warnings(action="ignore"):
            if (saving := self.scenario.saving) in fsdp1_saving.SAVINGS:
                assert isinstance(self.module, FullyShardedDataParallel)
                fsdp1_saving.save(self.module, self.optimizer, directory, self.group, saving)
            else:
                save_sharded(self.module, self.optimizer, directory, self.group, saving)

    def load(self, directory: Path) -> None:
        self._load_scale(directory)
        with warnings.catch_warnings(action="ignore"):
            if self.scenario.saving in fsdp1_saving.SAVINGS:
                assert isinstance(self.module, FullyShardedDataParallel)
                fsdp1_saving.load(self.module, self.optimizer, directory, self.group, self.scenario)
            else:
                load_sharded(self.module, self.optimizer, directory, self.group, self.scenario)

    def resident(self) -> dict[str, Sequence[Tensor]]:
        shards = storages(self.model.parameters())
        masters = shards if self.scenario.dtype != "fp32" else []
        return {
            "parameters": [] if masters else shards,
            "gradients": storages(p.grad for p in self.working.values() if p.grad is not None),
            "optimizer": [*masters, *storages(tensors_of(self.optimizer.state))],
        }


def _groups(scenario: Scenario, group: dist.ProcessGroup) -> Groups:
    """All ranks or, with replicas, this rank's row of shards and its row of replicas."""
    if scenario.replicate == 1:
        return group
    return mesh.groups(group, scenario.mesh.shard)
