"""FSDP2: with share_comm_ctx the backward of one model makes the backward of another, which ran before it, raise.

Two chunks of a model, each a root of FSDP2, on one rank, as in an interleaved pipeline: forwards of the first and of
the second, then the backward of the second and that of the first.
"""

from __future__ import annotations

import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard, share_comm_ctx


def chunk() -> nn.Sequential:
    """Two layers, each a group of FSDP2, and a root without parameters."""
    layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for layer in layers:
        fully_shard(layer)
    fully_shard(layers)
    return layers


def train(*, shared: bool) -> str:
    """The outcome of a forward and a backward of two chunks."""
    first, second = chunk(), chunk()
    if shared:
        share_comm_ctx([first, second])
    hidden = first(torch.ones(1, 2))
    received = hidden.detach().requires_grad_()
    second(received).sum().backward()
    try:
        hidden.backward(received.grad)
    except IndexError as error:
        return f"raised IndexError: {error}"
    return "trained"


def main() -> int:
    """1 if the backward raises with shared streams, and not without."""
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        found = {shared: train(shared=shared) for shared in (False, True)}
        dist.destroy_process_group()
    for shared, outcome in found.items():
        print(f"{'with' if shared else 'without'} share_comm_ctx: {outcome}")
    return int(found[False] == "trained" != found[True])


if __name__ == "__main__":
    sys.exit(main())
