"""torch's model averaging: ranks whose parameters with gradients differ average unlike parameters."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

#: The branches that each rank uses, step by step, and the parameters that both ranks should have at the end.
CASES = {
    "each rank has its own branch": ((["left"], ["right"]), "left 9.5, right 19"),
    "a branch rests in the step that averages": ((["left", "right"], ["left", "right"]), "left 8.5, right 18.5"),
}


class Branches(torch.nn.Module):
    """Two branches, of which a forward uses one; each multiplies by its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.left = torch.nn.Parameter(torch.tensor(10.0))
        self.right = torch.nn.Parameter(torch.tensor(20.0))

    def forward(self, x: torch.Tensor, branch: str) -> torch.Tensor:
        return x * self.get_parameter(branch)


def train(rank: int, case: str, store: str, out: str) -> None:
    """Train in a subgroup of one rank, with the parameters averaged over both ranks in the last step."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    subgroup, _ = dist.new_subgroups(group_size=1)
    model, uses = Branches(), CASES[case][0][rank]
    module = DistributedDataParallel(model, process_group=subgroup, find_unused_parameters=True)
    averager = PeriodicModelAverager(period=len(uses), warmup_steps=len(uses) - 1)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), averager)
    for branch in uses:
        optimizer.zero_grad()
        module(torch.tensor(1.0 + rank), branch).backward()  # the gradient is 1 on rank 0, and 2 on rank 1
        optimizer.step()
    Path(out, str(rank)).write_text(f"left {float(model.left):g}, right {float(model.right):g}", encoding="utf-8")
    dist.destroy_process_group()


def main() -> int:
    """1 if a parameter is not the average."""
    wrong = False
    for case, (_, expected) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(train, (case, f"{folder}/store", folder), nprocs=2)
            found = [Path(folder, str(rank)).read_text(encoding="utf-8") for rank in range(2)]
        print(f"{case}: expected {expected}, got {' on rank 0, and '.join(found)} on rank 1")
        wrong = wrong or found != [expected] * 2
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
