"""torch's DistributedDataParallel with torch.optim: plain data parallelism, stage 0."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from zerobench.scenario import Odd, Scenario
from zerobench.subject import Theory
from zerobench.subjects.plain import Plain
from zerobench.theory import peers


class TorchDdp(Plain):
    """Gradients are all-reduced in the model's dtype, in DDP's own buckets; every rank keeps everything."""

    name = "torch-ddp"
    stages = (0,)

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if (reason := super().unsupported(scenario)) is not None:
            return reason
        if scenario.communication_dtype not in (None, scenario.dtype):
            return f"{cls.name} reduces in the model's dtype, {scenario.dtype}, not {scenario.communication_dtype}"
        if scenario.accumulator_dtype not in (None, scenario.dtype):
            return f"{cls.name} accumulates in the model's dtype, {scenario.dtype}, not {scenario.accumulator_dtype}"
        return _unsupported_sum(scenario) or _unsupported_model(scenario)

    @classmethod
    def theory(cls) -> Theory:
        return peers.Ddp()

    def _wrap(self) -> nn.Module:
        module = DistributedDataParallel(
            self.model,
            process_group=self.group,
            gradient_as_bucket_view=True,
            find_unused_parameters=_some_unused(self.scenario),
        )
        module.broadcast_buffers = False  # each rank's buffers are its own; no argument says so without a warning
        return module

    def _synchronizing(self, needed: bool) -> AbstractContextManager[None]:
        assert isinstance(self.module, DistributedDataParallel)
        return nullcontext() if needed else self.module.no_sync()


def _some_unused(scenario: Scenario) -> bool:
    """Whether a forward may leave a trainable parameter out."""
    return isinstance(scenario.model, Odd) and (scenario.model.unused or scenario.model.routed)


def _unsupported_sum(scenario: Scenario) -> str | None:
    """Every all-reduce but the first of a step averages values once more that were averaged before."""
    again = scenario.reduction == "micro_step" and scenario.accumulation > 1
    if scenario.data == "dyadic" and again and scenario.world & (scenario.world - 1):
        return f"DDP's reduction at every micro-step is not exact over {scenario.world} ranks"
    return None


def _unsupported_model(scenario: Scenario) -> str | None:
    """Reentrant recomputation runs a backward inside the backward, of which DDP's bookkeeping knows nothing."""
    if scenario.model.recompute != "reentrant":
        return None
    if _some_unused(scenario):
        return "DDP cannot look for unused parameters under reentrant recomputation"
    if isinstance(scenario.model, Odd) and scenario.model.reused:
        return "DDP counts a block that is called twice under reentrant recomputation as ready twice"
    return None
