"""fairscale: in evaluation mode ShardedDataParallel neither reduces nor clears gradients, and it reduces none
if the client evaluates before a backward.

Each rank's loss is the sum of the weights times a factor, 0 on rank 0 and 2 on rank 1. The mean gradient is 1, so that
SGD with lr 1 must move each weight by -1 in each step.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


class Model(torch.nn.Module):
    """The loss is the sum of the weights times a factor. There are four, as a bucket has at least two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.zeros(8) for _ in range(4))

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        return factor * sum(each.sum() for each in self.weights)


def train(rank: int, client: str) -> float:
    """An element of the weight after three steps of a client."""
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS

    model = Model()
    optimizer = OSS(model.parameters(), optim=torch.optim.SGD, lr=1.0)
    module = ShardedDataParallel(model, optimizer)
    for _ in range(3):
        module.train(client != "trains in eval()")
        module.zero_grad()
        loss = module(torch.tensor(2.0 * rank))
        if client == "evaluates between forward and backward":
            module.eval()
            with torch.no_grad():
                module(torch.tensor(1.0))
            module.train()
        loss.backward()
        optimizer.step()
    return model.weights[0][0].item()


def left() -> float:
    """An element of a gradient that zero_grad() must have cleared, in evaluation mode; also on one rank alone."""
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS

    model = Model()
    module = ShardedDataParallel(model, OSS(model.parameters(), optim=torch.optim.SGD, lr=1.0)).eval()
    module(torch.tensor(1.0)).backward()
    module.zero_grad()
    gradient = model.weights[0].grad
    return 0.0 if gradient is None else gradient[0].item()


def on_rank(rank: int, folder: str) -> None:
    """Each client; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for client in ("trains", "evaluates between forward and backward", "trains in eval()"):
        got = train(rank, client)
        if rank == 0:
            print(f"a client that {client}: expected -3.0 after three steps, got {got}", flush=True)
            if got != -3.0:
                Path(folder, "wrong").touch()
    cleared = left()
    if rank == 0:
        print(f"a gradient after zero_grad() in eval(): expected 0.0, got {cleared}", flush=True)
        if cleared:
            Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a weight is wrong."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
