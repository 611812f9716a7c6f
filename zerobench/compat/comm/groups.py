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
    "get_tensor_model_parallel_src_rank",
    "set_tensor_model_parallel_rank",
    "set_tensor_model_parallel_world_size",
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


def get_tensor_model_parallel_src_rank() -> int:
    """The first rank of this rank's group of tensor parallelism: this rank, the only one."""
    return dist.get_rank()


def set_tensor_model_parallel_world_size(world_size: int | None) -> None:
    """Take 1.

    Raises:
        NotImplementedError: for another number.
    """
    if world_size not in (None, 1):
        group_of_parallelism("set_tensor_model_parallel_world_size")()


def set_tensor_model_parallel_rank(rank: int | None) -> None:
    """Take 0.

    Raises:
        NotImplementedError: for another rank.
    """
    if rank not in (None, 0):
        group_of_parallelism("set_tensor_model_parallel_rank")()


def _one(group_name: str = "") -> int:
    """The ranks of any other parallelism."""
    return 1


def _first(group_name: str = "") -> int:
    """This rank in any other parallelism."""
    return 0


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    bare = name.removeprefix("_")
    if bare.startswith("get_") and bare.endswith("parallel_world_size"):
        return _one
    if bare.startswith("get_") and bare.endswith("parallel_rank"):
        return _first
    return group_of_parallelism(name)
