"""The other settings of the engines, each a subject of its own; a known finding of an engine is theirs too."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from zerobench.scenario import Scenario
from zerobench.subject import Theory
from zerobench.subjects import ddp_settings, deepspeed_options
from zerobench.subjects.deepspeed import DeepSpeed
from zerobench.subjects.plain import Plain
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.subjects.torch_fsdp1 import TorchFsdp1
from zerobench.subjects.torch_fsdp2 import TorchFsdp2
from zerobench.subjects.torch_zero1 import TorchZero1
from zerobench.theory import peers

_HOOKS = "https://docs.pytorch.org/docs/2.13/ddp_comm_hooks.html"
_FSDP1 = "https://docs.pytorch.org/docs/2.13/fsdp.html#torch.distributed.fsdp.CPUOffload"
_FSDP2_SOURCE = (
    "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py"
)
_FSDP2 = "https://docs.pytorch.org/docs/2.13/distributed.fsdp.fully_shard.html"


class DeepSpeedAtBoundary(DeepSpeed):
    """The caller steps once after all micro-steps and tells DeepSpeed the boundary, as Hugging Face's Trainer does."""

    name = "deepspeed-at-boundary"
    settings = tuple(name for name in DeepSpeed.settings if name not in deepspeed_options.ACCUMULATIONS)
    steps_at_boundary = True


class DdpCopies(TorchDdp):
    """Gradients are copies of the buckets, not views of them."""

    name = "torch-ddp-copies"
    bucket_view = False

    @classmethod
    def theory(cls) -> Theory:
        return peers.DdpCopies()


class DdpFindUnused(TorchDdp):
    """DDP walks the graph of every forward for parameters that it does not use."""

    name = "torch-ddp-find-unused"
    find_unused = True


class DdpStaticGraph(TorchDdp):
    """DDP records the graph of the first step and expects it in all others."""

    name = "torch-ddp-static-graph"
    static_graph = True


class DdpFp16Hook(TorchDdp):
    """DDP sends gradients in fp16 by its own communication hook, and keeps them in the model's dtype."""

    name = "torch-ddp-fp16-hook"
    #: DDP takes one hook, which is of all ranks.
    settings = tuple(name for name in TorchDdp.settings if name not in (*ddp_settings.HOOKS, ddp_settings.ALONE))
    hook: ClassVar[Callable[..., Any]] = staticmethod(fp16_compress_hook)

    @classmethod
    def wire(cls, scenario: Scenario) -> str:
        return "fp16"

    def _wrap(self) -> nn.Module:
        module = super()._wrap()
        assert isinstance(module, DistributedDataParallel)
        module.register_comm_hook(self.group, self.hook)
        return module


class DdpBf16Hook(DdpFp16Hook):
    """The same in bf16, which the hook permits only with NCCL."""

    name = "torch-ddp-bf16-hook"
    hook = staticmethod(bf16_compress_hook)

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if scenario.device == "cpu":
            return f"DDP's bf16 hook demands a GPU: {_HOOKS}"
        return super().unsupported(scenario)

    @classmethod
    def wire(cls, scenario: Scenario) -> str:
        return "bf16"


class Zero1Views(TorchZero1):
    """Each owner's parameters are views of one flat tensor."""

    name = "torch-zero1-views"
    parameter_views = True
    #: The views are contiguous: torch/distributed/optim/zero_redundancy_optimizer.py, _build_param_buckets
    policies = replace(TorchZero1.policies, strides="contiguous")

    def _take_masters(self) -> dict[str, nn.Parameter]:
        """In 16 bits the optimizer has the masters; the model's parameters get the layout of their views."""
        masters = super()._take_masters()
        for name, p in self.model.named_parameters():
            p.data = p.data.contiguous() if name in masters else p.data
        return masters


class _TwoReplicas(Plain):
    """Two groups of ranks, each with all shards."""

    whole_world = True

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if scenario.replicate != 2:
            return f"{cls.name} has two replicas of its shards, not {scenario.replicate}"
        if scenario.world % 2:
            return f"{cls.name} needs an even number of ranks for its two replicas"
        return super().unsupported(scenario)


class Fsdp1Hybrid(_TwoReplicas, TorchFsdp1):
    """Two replicas of the shards, by HYBRID_SHARD; at stage 2 by its variant that unshards once a step."""

    name = "torch-fsdp1-hybrid"
    stages = (2, 3)


class Fsdp1Prefetch(TorchFsdp1):
    """A unit's parameters are gathered before the forward of the unit before it."""

    name = "torch-fsdp1-prefetch"
    prefetches = True


class Fsdp1Offload(TorchFsdp1):
    """The shards and the optimizer are in host memory."""

    name = "torch-fsdp1-offload"
    offloads = True

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if scenario.device == "cpu":
            return f"FSDP1 offloads from an accelerator only: {_FSDP1}"
        return super().unsupported(scenario)


class Fsdp2Hybrid(_TwoReplicas, TorchFsdp2):
    """Two replicas of the shards, by a mesh of two dimensions."""

    name = "torch-fsdp2-hybrid"


class Fsdp2HybridDeferred(Fsdp2Hybrid):
    """Each micro-step reduces gradients over the shards, and the last one also over the replicas, as torchtitan does:
    https://github.com/pytorch/torchtitan/pull/4505."""

    name = "torch-fsdp2-hybrid-deferred"

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        wire = scenario.communication_dtype or scenario.dtype
        if scenario.accumulation > 1 and scenario.dtype == "fp32" and wire != "fp32":
            return f"{cls.name} adds the partial gradients of micro-steps in reduce_dtype, {wire}: {_FSDP2_SOURCE}"
        return super().unsupported(scenario)

    def _synchronizing(self, needed: bool) -> AbstractContextManager[None]:
        assert isinstance(self.module, FSDPModule)
        self.module.set_requires_all_reduce(self.micro_steps == self.boundary)
        return nullcontext()


class Fsdp2Offload(TorchFsdp2):
    """The shards and the optimizer are in host memory."""

    name = "torch-fsdp2-offload"
    offloads = True


class Fsdp2ReshardToTwo(TorchFsdp2):
    """From forward to backward a parameter is sharded over two ranks, on each half of the ranks."""

    name = "torch-fsdp2-reshard-to-two"
    stages = (3,)
    reshard = 2

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if (reason := super().unsupported(scenario)) is not None:
            return reason
        if scenario.mesh.shard != 4:
            return f"{cls.name} needs shards on four ranks: an integer must be a factor of their number: {_FSDP2}"
        return None
