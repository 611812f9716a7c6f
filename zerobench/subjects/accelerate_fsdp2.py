"""Hugging Face's Accelerate, driving torch's FSDP2: stages 2 and 3; the extra ``[peers]`` installs it."""

from __future__ import annotations

from typing import Any

from torch import nn

from zerobench.oracles.optimizer import groups
from zerobench.scenario import Scenario
from zerobench.subjects import plain_settings
from zerobench.subjects.accelerated import (
    CODE,
    COUNTS_STEPS,
    EACH,
    Accelerated,
    Optimizers,
    arguments,
)
from zerobench.subjects.torch_fsdp2 import TorchFsdp2, mixed_precision
from zerobench.workload.models.blocks import block_groups

_SOURCE = "https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/accelerator.py"


class AccelerateFsdp2(Accelerated, TorchFsdp2):
    """FSDP2 with the client's loop of Accelerate, which shards each block by its class, and the rest as the root.

    Accelerate drives FSDP2 on accelerators alone. On a CPU nothing but this check is in the way (``AcceleratorState``
    in accelerate/state.py), so the subject sets the state that it leaves behind.
    """

    name = "accelerate-fsdp2"
    hybrid = False  # its mesh has all ranks
    settings = (COUNTS_STEPS, EACH, *plain_settings.FORMS, *CODE)

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if scenario.world == 1 and scenario.accumulation > 1 and scenario.reduction == "micro_step":
            return f"sync_each_batch has no effect on one rank: {_SOURCE}"
        return super().unsupported(scenario)

    def _accelerator(self, model: nn.Module, scenario: Scenario) -> Any:
        from accelerate import Accelerator, AutocastKwargs, PartialState
        from accelerate.utils import DistributedType

        plugin, casts = _plugin(model, scenario), AutocastKwargs(enabled=False)  # the policy casts
        made = Accelerator(**arguments(scenario), fsdp_plugin=plugin, kwargs_handlers=[casts])
        made.state.distributed_type, made.state.fsdp_plugin = DistributedType.FSDP, plugin
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP  # each new AcceleratorState copies it
        return made

    def _wrap(self) -> nn.Module:
        """Accelerate takes the model and its optimizer together: it gives the optimizer the sharded parameters."""
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self._own_optimizers = self._of_client(self._of_groups(groups(self.scenario.optimizer, named)))
        module: nn.Module
        module, *self._prepared = self.accelerator.prepare(self.model, *self._own_optimizers)
        return module

    def _optimizer(self) -> Any:
        return Optimizers.of(self._prepared)

    @property
    def _saved_optimizer(self) -> Any:
        """torch's own: the steps of Accelerate's, which a load takes to make the states, go through the loss scaler."""
        return self._own_optimizers


def _plugin(model: nn.Module, scenario: Scenario) -> Any:
    """Each block is a unit; if blocks share parameters, which must be of one unit, the model is one."""
    from accelerate import FullyShardedDataParallelPlugin

    grouped = block_groups(model)
    alone = all(len(blocks) == 1 for blocks in grouped)
    return FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=scenario.placement.parameters,
        mixed_precision_policy=mixed_precision(scenario, root=True),
        auto_wrap_policy="transformer_based_wrap" if alone else "no_wrap",
        transformer_cls_names_to_wrap=sorted({type(each).__name__ for blocks in grouped for each in blocks}),
        cpu_ram_efficient_loading=False,
    )
