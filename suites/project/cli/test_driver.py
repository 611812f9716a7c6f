"""The driver: what an engine sets for the whole process does not change how others train."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from zerobench.driver import start
from zerobench.ranks import Pool
from zerobench.scenario import Scenario
from zerobench.subjects.torch_ddp import TorchDdp


class _SetsThreads(TorchDdp):
    """Sets torch's number of threads, as Accelerate does."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model, scenario, group)
        torch.set_num_threads(torch.get_num_threads() + 1)


def _threads(group: dist.ProcessGroup) -> tuple[int, int]:
    before = torch.get_num_threads()
    start(_SetsThreads, Scenario(world=1, stage=0), group).close()
    return before, torch.get_num_threads()


def test_threads_stay(pool: Pool) -> None:
    """The number of threads decides the order of sums in backward, so an engine cannot set it."""
    [(before, after)] = pool.run(_threads, world=1)
    assert before == after
