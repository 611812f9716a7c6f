"""How DeepSpeed saves and loads: arguments of its calls, keys of its configuration, and the folder of each machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch.distributed as dist

from zerobench.model_specs import Odd
from zerobench.scenario import Scenario

_ENGINE = "https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/runtime/engine.py"
_PAGE = "https://www.deepspeed.ai/docs/config-json/#checkpoint-options"

TAGGED, WITHOUT_FROZEN, PARALLEL = "tag", "exclude_frozen_parameters", "parallel_write"
#: Each machine saves to a folder of its own, which no other one sees; in the second form with a tag.
LOCAL, LOCAL_TAGGED = "node_local_storage", "node_local_storage, tag"
#: Whose files are all in one folder.
IN_ONE_FOLDER = TAGGED, WITHOUT_FROZEN, PARALLEL
SAVINGS = *IN_ONE_FOLDER, LOCAL, LOCAL_TAGGED
_TAGS = frozenset([TAGGED, LOCAL_TAGGED])
_OF_MACHINES = frozenset([LOCAL, LOCAL_TAGGED])


def unsupported(scenario: Scenario) -> str | None:
    """The reason of its documentation against a Scenario's way to save, or None."""
    frozen = bool(scenario.frozen_steps) or (isinstance(scenario.model, Odd) and scenario.model.frozen)
    if scenario.saving == WITHOUT_FROZEN and frozen and scenario.loads_into != "same":
        return f"{WITHOUT_FROZEN} leaves the values of frozen parameters to the client: {_ENGINE}"
    return None


def keys(scenario: Scenario) -> dict[str, Any]:
    """The configuration's keys of checkpoints."""
    if scenario.saving == PARALLEL:
        return {"parallel_write": {"pipeline_stage": True}}
    return {"use_node_local_storage": True} if scenario.saving in _OF_MACHINES else {}


def folder(scenario: Scenario, directory: Path, group: dist.ProcessGroup) -> Path:
    """The folder to which this rank saves: with node-local storage that of its machine. A collective.

    DeepSpeed knows a machine by its local ranks, of which each is there once; so ranks that share a GPU, or have none,
    are each on a machine of their own. In one folder several would write one file.
    """
    if scenario.saving not in _OF_MACHINES:
        return directory
    local: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(local, os.environ["LOCAL_RANK"], group=group)
    rank = dist.get_rank(group)
    return directory / f"machine-{local[:rank].count(local[rank])}"


def save_arguments(scenario: Scenario, directory: Path, step: int) -> dict[str, Any]:
    """The arguments of ``save_checkpoint``. With tags, the file "latest" has the first one."""
    if scenario.saving in _TAGS:
        return {"tag": f"step-{step}", "save_latest": not (directory / "latest").exists()}
    return {"exclude_frozen_parameters": True} if scenario.saving == WITHOUT_FROZEN else {}


def last_tag(directory: Path) -> str:
    """The tag of the last save with a tag; that of its conversion, if it has been converted."""
    tags = [each.name for each in directory.glob("step-*")]
    return max(tags, key=lambda tag: (int(tag.removeprefix("step-").partition("_")[0]), tag))


def load_arguments(scenario: Scenario, directory: Path, tag: str) -> dict[str, Any]:
    """The arguments of ``load_checkpoint``. With tags, the checkpoint of ``tag``, or of the last step if it is empty:
    a client that names its states has none of a step."""
    if scenario.saving in _TAGS:
        return {"tag": tag or last_tag(directory)}
    return {"load_module_strict": False} if scenario.saving == WITHOUT_FROZEN else {}
