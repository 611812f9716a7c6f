"""A Scenario's placement and mesh, and its JSON."""

from __future__ import annotations

import dataclasses

import pytest

from zerobench.engine.placement import Placement as EnginePlacement
from zerobench.errors import UsageError
from zerobench.placement import Mesh, Placement
from zerobench.scenario import Scenario


@pytest.mark.parametrize("stage", range(4))
def test_the_placement_is_the_engines(stage: int) -> None:
    """The harness and the engine, which do not import each other, shard the same states at each stage."""
    ours, theirs = Scenario(stage=stage).placement, EnginePlacement.of_stage(stage)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert sum(dataclasses.asdict(ours).values()) == stage


def test_stage_3_offloads_parameters() -> None:
    """If the stage does not shard a state, the state is on the device, whatever the setting."""
    asked = [Scenario(stage=stage, offload_optimizer="cpu", offload_param="nvme") for stage in range(4)]
    assert [(each.optimizer_at, each.parameters_at) for each in asked] == [
        ("none", "none"),
        ("cpu", "none"),
        ("cpu", "none"),
        ("cpu", "nvme"),
    ]
    assert [each.placement for each in asked] == [Placement.of_stage(stage) for stage in range(4)]


def test_a_mesh() -> None:
    """All ranks share each state unless replicas are asked for."""
    assert Scenario(world=4).mesh == Mesh(shard=4)
    assert Scenario(world=4, replicate=2).mesh == Mesh(shard=2, replicate=2)
    assert Scenario(world=4, replicate=2).mesh.world == 4


def test_one_replica_is_not_in_the_json() -> None:
    """Its JSON, and so a case's identity, is that of Scenarios before meshes."""
    assert Scenario(replicate=1).to_json() == Scenario().to_json() == "{}"
    two = Scenario(world=4, replicate=2)
    assert Scenario.from_json(two.to_json()) == two


@pytest.mark.parametrize(
    ("replicate", "says"),
    [
        (3, "4 ranks do not make 3 groups of equal size; give a divisor of 4"),
        (0, "scenario.replicate: expected at least"),
    ],
)
def test_a_mesh_that_cannot_be(replicate: int, says: str) -> None:
    """Reading it gives an error of one line."""
    with pytest.raises(UsageError, match=says):
        Scenario.from_json(f'{{"world": 4, "replicate": {replicate}}}')
