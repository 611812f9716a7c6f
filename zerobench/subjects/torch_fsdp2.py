"""torch's FSDP2 (``fully_shard``) on each block and the root: stages 2 and 3, also as hybrid sharding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from zerobench.model_specs import Odd
from zerobench.scenario import Scenario
from zerobench.subject import Batch, Theory
from zerobench.subjects import client_settings, fsdp2_chunks, fsdp2_settings, group_settings, plain_settings
from zerobench.subjects.device_mesh import fsdp_mesh
from zerobench.subjects.plain import Plain, storages, tensors_of
from zerobench.subjects.saving import OF_RANK_0, SHARDED_SAVINGS, load_sharded, not_saved, save_sharded
from zerobench.theory import peers
from zerobench.workload.data import DTYPES
from zerobench.workload.models.blocks import block_groups, layers_of

_SOURCE = "https://github.com/pytorch/pytorch/tree/v2.13.0/torch/distributed/fsdp/_fully_shard"


class TorchFsdp2(Plain):
    """Parameters are sharded by rows between steps, at both stages; stage 2 keeps them from forward to backward.

    The shards are the fp32 masters; in bf16 and fp16 they are cast during the gather, and no other copy is kept.
    """

    name = "torch-fsdp2"
    stages: ClassVar[tuple[int, ...]] = (2, 3)
    hybrid = True
    resumes = True
    evaluates_in_inference_mode = False  # the finding fsdp2/inference-mode, which a setting draws
    loads_parts = True
    loads_other_stages = True
    resumes_at_any_world = True  # "load-time resharding": see zerobench/subjects/saving.py
    settings = (
        *plain_settings.SETTINGS,
        *client_settings.CODE,
        client_settings.DIFFERENTIATED,
        *client_settings.OF_TORCH,
        *group_settings.GROUPS,
        client_settings.CAST,
        plain_settings.INFERENCE,
        *fsdp2_settings.SETTINGS,
        *fsdp2_chunks.SETTINGS,
    )
    savings: ClassVar[tuple[str, ...]] = SHARDED_SAVINGS
    adds_reduced = True
    #: Ranks over which a parameter stays sharded from forward to backward at stage 3; 0 means all.
    reshard: ClassVar[int] = 0

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if (reason := super().unsupported(scenario)) is not None:
            return reason
        wire = scenario.communication_dtype or scenario.dtype
        accumulator = "fp32" if scenario.reduction == "micro_step" else wire
        if scenario.accumulator_dtype not in (None, accumulator):
            return f"{cls.name} accumulates in {accumulator} here, not in {scenario.accumulator_dtype}: {_SOURCE}"
        if isinstance(scenario.model, Odd) and (reason := _unsupported_model(scenario)) is not None:
            return reason
        return fsdp2_settings.unsupported(scenario) or fsdp2_chunks.unsupported(scenario) or not_saved(scenario)

    @classmethod
    def theory(cls) -> Theory:
        return peers.Fsdp2()

    @classmethod
    def needs_whole_world(cls, scenario: Scenario) -> bool:
        makes_group = fsdp2_settings.SECOND_MESH in scenario.settings
        return super().needs_whole_world(scenario) or scenario.saving in OF_RANK_0 or makes_group

    def _take_masters(self) -> dict[str, nn.Parameter]:
        return {}

    def _wrap(self) -> nn.Module:
        scenario, unit = self.scenario, self._unit()
        kept = fsdp2_settings.without_memory(self.model, scenario)
        if fsdp2_settings.ROOT_ALONE not in scenario.settings:
            # fully_shard demands that modules with a tied weight be one group
            for blocks in fsdp2_settings.grouped(block_groups(self.model), scenario):
                for layer in self._layers(blocks):
                    unit(layer, mp_policy=mixed_precision(scenario), **self._kept())
                unit(blocks, mp_policy=mixed_precision(scenario), **self._kept())
        for layer in fsdp2_settings.first_layer(self.model, scenario):
            unit(layer, mp_policy=mixed_precision(scenario), **self._kept())
        unit(self.model, mp_policy=mixed_precision(scenario, root=True))
        fsdp2_settings.fill(self.model, scenario, kept)
        fsdp2_settings.set_up(self.model, scenario)
        self.chunk = fsdp2_chunks.chunk(self.model, unit, scenario)
        return self.model

    def _layers(self, blocks: Sequence[nn.Module]) -> list[nn.Module]:
        """The layers of a group of blocks that are groups of parameters themselves."""
        if fsdp2_settings.LAYERS not in self.scenario.settings or len(blocks) > 1:
            return []
        return [layer for _, layer in layers_of(blocks[0])]

    def _unit(self) -> Callable[..., Any]:
        """The function that makes modules a unit."""
        return partial(
            fully_shard,
            mesh=fsdp_mesh(self.group, self.scenario),
            offload_policy=self._offload(),
            shard_placement_fn=fsdp2_settings.placement(self.scenario, self.group),
            **fsdp2_settings.ignored(self.model, self.scenario),
        )

    def _offload(self) -> OffloadPolicy:
        return CPUOffloadPolicy(pin_memory=self.scenario.device != "cpu") if self.offloads else OffloadPolicy()

    def _kept(self) -> dict[str, Any]:
        """The argument that says how a block's parameters are kept from forward to backward."""
        return {"reshard_after_forward": self.reshard or self.scenario.placement.parameters}

    def micro_step(self, batch: Batch) -> Tensor:
        first, last = not self.micro_steps, self.micro_steps == self.boundary - 1
        fsdp2_settings.before_micro_step(self.model, self.scenario, batch, first=first, last=last)
        self._train_chunk(fsdp2_chunks.SHARED)
        return super().micro_step(batch)

    def _scaled(self, loss: Tensor) -> Tensor:
        self._train_chunk(fsdp2_chunks.BETWEEN)
        return super()._scaled(loss)

    def _train_chunk(self, setting: str) -> None:
        """Train the second model, if a setting does it here."""
        if self.chunk is not None and setting in self.scenario.settings:
            self.chunk.train()

    @property
    def _called(self) -> Callable[..., Any]:
        return fsdp2_settings.called(self.model, self.scenario)

    def _synchronizing(self, needed: bool) -> AbstractContextManager[None]:
        assert isinstance(self.module, FSDPModule)
        self.module.set_requires_gradient_sync(needed)
        return nullcontext()

    def _full(self, tensor: Tensor) -> Tensor:
        detached = tensor.detach()
        return detached.full_tensor() if isinstance(detached, DTensor) else detached

    def _set(self, parameter: Tensor, value: Tensor) -> None:
        if isinstance(parameter, DTensor):
            value = distribute_tensor(value, parameter.device_mesh, parameter.placements)
        parameter.copy_(value)

    def evaluate(self, batch: Batch) -> Tensor:
        loss = super().evaluate(batch)
        if not self.micro_steps:
            self._reshard()
        return loss

    def _reshard(self) -> None:
        """Free the parameters that a forward left whole, as no backward follows; the caller does it between steps.

        Within a step no documentation tells him to: see reports/findings/fsdp2/evaluation-before-step.
        """
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    @property
    def _saved_optimizer(self) -> Any:
        """What torch.distributed.checkpoint takes as the optimizer."""
        return self.optimizer

    def save(self, directory: Path) -> None:
        self._save_scale(directory)
        save_sharded(self.module, self._saved_optimizer, directory, self.group, self.scenario.saving)

    def load(self, directory: Path) -> None:
        self._load_scale(directory)
        load_sharded(self.module, self._saved_optimizer, directory, self.group, self.scenario)

    def resident(self) -> dict[str, Sequence[Tensor]]:
        shards = storages(_local(self.model.parameters()))
        masters = shards if self.scenario.dtype != "fp32" else []
        return {
            "parameters": [] if masters else shards,
            "gradients": storages(_local(p.grad for p in self.working.values() if p.grad is not None)),
            "optimizer": [*masters, *storages(_local(tensors_of(self.optimizer.state)))],
        }


def mixed_precision(scenario: Scenario, *, root: bool = False) -> MixedPrecisionPolicy:
    """The dtypes of a unit's parameters and of its reduction."""
    return MixedPrecisionPolicy(
        param_dtype=None if scenario.dtype == "fp32" else DTYPES[scenario.dtype],  # a dtype casts inputs as well
        reduce_dtype=DTYPES[scenario.communication_dtype or scenario.dtype],
        **fsdp2_settings.policy(scenario, root=root),
    )


def _unsupported_model(scenario: Scenario) -> str | None:
    """The peculiarities that FSDP2 refuses by name.

    It does so in torch/distributed/fsdp/_fully_shard/_fsdp_param.py and _fsdp_init.py. Any other failure is a finding:
    see :mod:`zerobench.findings`.
    """
    model = scenario.model
    assert isinstance(model, Odd)
    refused = {
        "a scalar parameter": model.scalar,
        "a parameter that is not contiguous": model.transposed,
        "a linear of a block that is called without the block, as it gathers before the block's forward alone": (
            model.part_alone and (fsdp2_settings.LAYERS not in scenario.settings or model.tied_blocks)
        ),
    }
    return next((f"fully_shard refuses {what}: {_SOURCE}" for what, there in refused.items() if there), None)


def _local(tensors: Iterable[Tensor]) -> list[Tensor]:
    """This rank's part of each tensor."""
    return [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
