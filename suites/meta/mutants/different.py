"""Engines that are right and different: each must pass every property that applies to it.

Those that keep the contract's order of additions promise its bits; the others promise none.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from zerobench.engine.comm.collectives import Ranks, Works
from zerobench.engine.ops.folding import fold
from zerobench.scenario import Scenario
from zerobench.subject import Batch, Outcome, State, Subject, Theory
from zerobench.subjects.reference import Reference
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.suites.meta.mutants.by_hand import RightByHand, RightByOwners
from zerobench.suites.meta.mutants.order import RightInReverse
from zerobench.suites.meta.mutants.plain import Mutant, RightButSlow

T = TypeVar("T")


class RightInOtherBuckets(Mutant):
    """Reduces and gathers in the smallest buckets, whatever the Scenario says."""

    @classmethod
    def theory(cls) -> Theory:
        return Theory()

    def sabotage(self) -> None:
        self.engine.reducer.bucket = self.engine.reducer.gather_bucket = self.engine.stepper.gather_bucket = 1
        if self.engine.unsharder is not None:
            self.engine.unsharder.bucket = 1


class RightWithBarriers(Mutant):
    """Waits for all ranks before each call."""

    def micro_step(self, batch: Batch) -> Tensor:
        dist.barrier(self.group)
        return super().micro_step(batch)

    def step(self) -> Outcome:
        dist.barrier(self.group)
        return super().step()

    def evaluate(self, batch: Batch) -> Tensor:
        dist.barrier(self.group)
        return super().evaluate(batch)


class RightInReverseOrder(Mutant):
    """Adds the last rank's contribution first; promises no bits."""

    promises_bits = False

    def sabotage(self) -> None:
        self.patch_fold(lambda total, rows, *, first: fold(total, rows.flip(0), first=first))


class RightInDoublePrecision(Mutant):
    """Adds in fp64 and rounds the sum once; promises no bits."""

    promises_bits = False

    def sabotage(self) -> None:
        def exactly(total: Tensor, rows: Tensor, *, first: bool) -> None:
            added = rows.double().sum(0)
            total.copy_(added if first else added + total.double())

        self.patch_fold(exactly)


class _OtherRanks(Ranks):
    """Broadcasts in place of all-gathers, and an all-gather of everything in place of an all-to-all."""

    def all_gather(self, output: Tensor, own: Tensor) -> Any:
        rows = output.view(self.world, -1)
        rows[self.rank].copy_(own.clone())
        for source, row in enumerate(rows):
            self.broadcast(row, source)
        return Works([])

    def all_to_all(self, output: Tensor, parts: Tensor) -> Any:
        everything = torch.empty(self.world * parts.numel(), dtype=parts.dtype, device=parts.device)
        self.all_gather(everything, parts)
        output.copy_(everything.view(self.world, self.world, -1)[:, self.rank].reshape(-1))
        return Works([])


class RightByOtherCollectives(Reference):
    """Moves the same values by other collectives."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        with mock.patch("zerobench.engine.construction.Ranks", _OtherRanks):
            super().__init__(model, scenario, group)

    @classmethod
    def theory(cls) -> Theory:
        return Theory()


class RightWithCopies(Mutant):
    """Copies what comes in and what goes out."""

    def sabotage(self) -> None:
        taken = self.engine.reducer._taken
        self.engine.reducer._taken = lambda state: [g if g is None else g.clone() for g in taken(state)]  # type: ignore[method-assign]

    def micro_step(self, batch: Batch) -> Tensor:
        copied = {name: value.clone() if isinstance(value, Tensor) else value for name, value in batch.items()}
        return super().micro_step(copied).clone()

    def parameters(self) -> State:
        return {name: value.clone() for name, value in super().parameters().items()}


class RightWithAllStatesElsewhere(Reference):
    """Optimizer states in host memory and parameters in files, at each stage that shards them."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        elsewhere = scenario.but(offload_optimizer="cpu", offload_param="nvme", offload_ratio=1.0, max_in_cpu=0)
        super().__init__(model, elsewhere.but(buffer_size=max(scenario.buffer_size, 100_000)), group)


class RightIfBuiltLate(Reference):
    """Builds its engine when it is first needed."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        self._given = model, scenario, group

    def __getattr__(self, name: str) -> Any:
        if name not in ("model", "scenario", "trained", "to_come", "engine", "optimizer"):
            raise AttributeError(name)
        super().__init__(*self._given)
        return vars(self)[name]


class RightInAThread(Reference):
    """Trains in a thread that is not the caller's."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        self._thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),))
        super().__init__(model, scenario, group)

    def micro_step(self, batch: Batch) -> Tensor:
        return self._there(lambda: super(RightInAThread, self).micro_step(batch))

    def step(self) -> Outcome:
        return self._there(super().step)

    def evaluate(self, batch: Batch) -> Tensor:
        return self._there(lambda: super(RightInAThread, self).evaluate(batch))

    def _there(self, call: Callable[[], T]) -> T:
        return self._thread.submit(call).result()

    def close(self) -> None:
        super().close()
        self._thread.shutdown()


class RightInDdpsSmallBuckets(TorchDdp):
    """torch DDP with a bucket for every few parameters, and gradients apart from the buckets; promises no bits."""

    def _wrap(self) -> nn.Module:
        module = DistributedDataParallel(
            self.model,
            process_group=self.group,
            bucket_cap_mb=1e-4,
            find_unused_parameters=True,
        )
        module.broadcast_buffers = False
        return module


#: Right engines; a failure is a false alarm.
DIFFERENT: list[type[Subject]] = [
    RightInOtherBuckets,
    RightWithBarriers,
    RightInReverseOrder,
    RightInDoublePrecision,
    RightByOtherCollectives,
    RightWithCopies,
    RightWithAllStatesElsewhere,
    RightIfBuiltLate,
    RightInAThread,
    RightInDdpsSmallBuckets,
    RightButSlow,
    RightInReverse,
    RightByHand,
    RightByOwners,
]
