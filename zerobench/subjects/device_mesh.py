"""The ranks of a Scenario as torch's DeviceMesh."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from zerobench.ranks.mesh import groups
from zerobench.scenario import Scenario


def fsdp_mesh(group: dist.ProcessGroup, scenario: Scenario) -> DeviceMesh:
    """All ranks in a row or, with replicas, a row of shards for each."""
    mesh = scenario.mesh
    if mesh.replicate == 1:
        return DeviceMesh.from_group(group, scenario.device)
    shards, replicas = groups(group, mesh.shard)
    return DeviceMesh.from_group(
        [replicas, shards],
        scenario.device,
        mesh=torch.arange(mesh.world).view(mesh.replicate, mesh.shard),
        mesh_dim_names=("replicate", "shard"),
    )
