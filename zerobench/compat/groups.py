"""``deepspeed.utils.groups``: the group of data parallelism; every other one is refused when it is used."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from zerobench.compat.refused import group_of_parallelism

__all__ = [
    "_get_data_parallel_group",
    "_get_data_parallel_rank",
    "_get_data_parallel_world_size",
    "get_data_parallel_group",
    "get_data_parallel_rank",
    "get_data_parallel_world_size",
]


def get_data_parallel_group() -> Any:
    """All ranks."""
    return dist.group.WORLD


def get_data_parallel_rank() -> int:
    """This rank."""
    return dist.get_rank()


def get_data_parallel_world_size() -> int:
    """The number of ranks."""
    return dist.get_world_size()


_get_data_parallel_group = get_data_parallel_group
_get_data_parallel_rank = get_data_parallel_rank
_get_data_parallel_world_size = get_data_parallel_world_size


def _one() -> int:
    """The ranks of any other parallelism."""
    return 1


def _first() -> int:
    """This rank in any other parallelism."""
    return 0


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    bare = name.removeprefix("_")
    if bare.endswith("parallel_world_size"):
        return _one
    if bare.endswith("parallel_rank"):
        return _first
    return group_of_parallelism(name)
