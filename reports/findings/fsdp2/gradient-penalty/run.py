"""FSDP2: the backward of a gradient penalty, whose gradients have a graph, raises."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def penalty(model: torch.nn.Module) -> torch.Tensor:
    """The square of the gradient of the output by the input, as in WGAN-GP."""
    x = torch.ones(2, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return gradient.square().sum()


def build() -> Any:
    """Two layers."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def main() -> int:
    """1 if a gradient is another one than that without FSDP2, or the backward raises."""
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        mesh = init_device_mesh("cpu", (1,))
        plain = build()
        penalty(plain).backward()  # type: ignore[no-untyped-call]
        expected = plain[0].weight.grad
        for reshard in (True, False):
            model = build()
            for each in (model[0], model[2], model):
                fully_shard(each, mesh=mesh, reshard_after_forward=reshard)
            try:
                penalty(model).backward()  # type: ignore[no-untyped-call]
                found = model[0].weight.grad
                got = "no gradient" if found is None else f"{float(found.full_tensor().norm()):.4f}"
            except RuntimeError as error:
                got = f"RuntimeError: {str(error).splitlines()[0]}"
            wrong = wrong or got != f"{float(expected.norm()):.4f}"
            print(f"reshard_after_forward={reshard}: expected a gradient of {float(expected.norm()):.4f}, got {got}")
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
