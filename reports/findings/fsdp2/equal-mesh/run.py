"""FSDP2: with dp_mesh_dims a second model of the same shapes raises, if its mesh equals that of the first model.

Each model gets a mesh of its own, of the same rank, and all its parameters are on this mesh.
"""

from __future__ import annotations

import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import DataParallelMeshDims, fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor


def outcome(outputs: int) -> str:
    """How fully_shard ends for a new model on a new mesh."""
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("data",))
    model = torch.nn.Linear(4, outputs)
    for name, p in list(model.named_parameters()):
        whole = distribute_tensor(p.detach(), mesh, [Replicate()])
        model.register_parameter(name, torch.nn.Parameter(whole))
    try:
        fully_shard(model, mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard="data"))
    except ValueError as error:
        return f"ValueError: {error}"
    return "sharded"


def main() -> int:
    """1 if a model is not sharded."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        ends = [("the first model", outcome(4)), ("one of other shapes", outcome(3)), ("one of the same", outcome(4))]
        dist.destroy_process_group()
    for which, end in ends:
        print(f"{which}: expected sharded, got {end}")
    return int(any(end != "sharded" for _, end in ends))


if __name__ == "__main__":
    sys.exit(main())
