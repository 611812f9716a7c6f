"""The settings of FSDP1 that change no value: arguments of its constructor, and what is wrapped."""

from __future__ import annotations

from typing import Any

from torch.distributed.fsdp import BackwardPrefetch

from zerobench.scenario import Scenario

_PAGE = "https://docs.pytorch.org/docs/2.13/fsdp.html"

ROOT_ALONE, MESH, SYNC = "FSDP of the root alone", "device_mesh", "sync_module_states"
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "backward_prefetch=BACKWARD_POST": {"backward_prefetch": BackwardPrefetch.BACKWARD_POST},
    "backward_prefetch=None": {"backward_prefetch": None},
    "limit_all_gathers=False": {"limit_all_gathers": False},
}
SETTINGS = (*_ARGUMENTS, ROOT_ALONE, MESH)


def unsupported(scenario: Scenario) -> str | None:
    """The reason of a setting's documentation against the Scenario, or None."""
    if scenario.ranks_differ and scenario.device == "cpu":
        return f"FSDP1 broadcasts the parameters of rank 0 ({SYNC}) on a GPU alone: {_PAGE}"
    if MESH in scenario.settings and not scenario.stage:
        return f"a device mesh is of shards: {_PAGE}"
    return None


def arguments(scenario: Scenario) -> dict[str, Any]:
    """The arguments of the constructor."""
    found: dict[str, Any] = {SYNC: scenario.ranks_differ}
    for name in scenario.settings:
        found |= _ARGUMENTS.get(name, {})
    return found
