"""FSDP2 on a mesh of replicas: a block that the last micro-step does not use keeps its own replica's gradient.

The all-reduce over the replicas is left to the last micro-step, by ``set_requires_all_reduce``. Each rank's loss is the
sum of the weights times rank + 1 for two ranks, so that the mean gradient of a weight is 1.5 for each use.

With reentrant checkpoints the backward reduces a group of two blocks once for each block. Then no step has the right
gradients, though every micro-step uses both blocks.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

RANKS = 2


class Model(nn.Module):
    """Two weights; the loss of a micro-step may leave the second out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = (nn.Linear(2, 1, bias=False) for _ in range(2))
        for weight in self.parameters():
            nn.init.zeros_(weight)

    def forward(self, x: torch.Tensor, uses_block: bool) -> torch.Tensor:
        loss = self.stem(x).sum()
        return loss + self.block(x).sum() if uses_block else loss


def train(rank: int, used: list[list[bool]]) -> list[float]:
    """The block's weight after each step of SGD with lr 1; ``used``: by step and micro-step, whether it is used."""
    mesh = init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("replicate", "shard"))
    model = Model()
    fully_shard(model.block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    x = torch.full((1, 2), float(rank + 1))
    weights = []
    for step in used:
        for number, uses_block in enumerate(step, 1):
            model.set_requires_all_reduce(number == len(step))  # type: ignore[operator]
            model(x, uses_block).backward()
        optimizer.step()
        optimizer.zero_grad()
        (weight,) = model.block.parameters()
        weights.append(weight.full_tensor()[0, 0].item())  # type: ignore[attr-defined]
    return weights


class Pair(nn.Module):
    """Two blocks with one matrix and a bias each, in one group, called in reentrant checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(2, 2) for _ in range(2))
        self.second.weight = self.first.weight
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in (self.first, self.second):
            x = x + checkpoint(block, x, use_reentrant=True)
        return x.sum()


def train_pair(rank: int, micro_steps: int) -> list[float]:
    """The two biases after a step of SGD with lr 1 / micro_steps, on inputs of rank + 1; the weight stays zero."""
    mesh = init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("replicate", "shard"))
    model = Pair()
    fully_shard([model.first, model.second], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0 / micro_steps)
    for number in range(1, micro_steps + 1):
        model.set_requires_all_reduce(number == micro_steps)  # type: ignore[operator]
        model(torch.full((1, 2), float(rank + 1), requires_grad=True)).backward()
    optimizer.step()
    return [block.bias.full_tensor()[0].item() for block in (model.first, model.second)]


def run(rank: int, folder: str) -> None:
    """One rank: print what both ranks have, and write down whether one of them is wrong."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    wrong = False
    both, first = [True, True], [True, False]
    for used, expected in (([both, both], [-3.0, -6.0]), ([first, both], [-1.5, -4.5])):
        got: list[list[float]] = [[], []]
        dist.all_gather_object(got, train(rank, used))
        wrong |= got != [expected] * RANKS
        if rank == 0:
            print(f"block used in {used}: expected {expected} after the two steps on both ranks, got {got}")
    for micro_steps in (1, 2):
        dist.all_gather_object(got, train_pair(rank, micro_steps))
        wrong |= got != [[-1.0, -1.0]] * RANKS
        if rank == 0:
            print(f"two blocks, {micro_steps} micro-steps: expected the biases [-1.0, -1.0] on both ranks, got {got}")
    dist.destroy_process_group()
    if wrong:
        (Path(folder) / "wrong").touch()


def main() -> int:
    """1 if a rank has other weights than expected."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, args=(folder,), nprocs=RANKS)  # type: ignore[no-untyped-call]
        return int((Path(folder) / "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
