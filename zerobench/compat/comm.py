"""``deepspeed.comm``: torch.distributed's names, and the start of the process group."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from zerobench.compat.accelerator import get_accelerator, local_device
from zerobench.compat.comms_logger import (
    comms_logger,
    configure,
    get_comm_operation_count,
    get_logged_comm_ops,
    has_comm_data,
    log_summary,
    reset_log,
)
from zerobench.compat.log import logger
from zerobench.machine.launch import Launch

__all__ = [
    "allgather_fn",
    "comms_logger",
    "configure",
    "default_pg_timeout",
    "get_all_ranks_from_group",
    "get_comm_operation_count",
    "get_local_rank",
    "get_logged_comm_ops",
    "get_world_group",
    "has_all_gather_into_tensor",
    "has_all_reduce_coalesced",
    "has_coalescing_manager",
    "has_comm_data",
    "has_reduce_scatter_tensor",
    "inference_all_reduce",
    "init_distributed",
    "log_summary",
    "new_group",
    "reduce_scatter_fn",
    "reset_log",
]

#: The functions of torch.distributed whose calls the communications logger records.
_COLLECTIVES = frozenset(
    [
        *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single"),
        *("barrier", "broadcast", "broadcast_object_list", "gather", "reduce", "reduce_scatter"),
        *("reduce_scatter_tensor", "scatter"),
    ]
)

#: Keywords of DeepSpeed's logger, which torch.distributed does not have.
_OF_THE_LOGGER = frozenset(["prof", "log_name", "debug"])
#: By collective, torch's names of DeepSpeed's keywords.
_KEYWORDS = {
    "all_gather_into_tensor": {"tensor": "input_tensor"},
    "reduce_scatter_tensor": {"output_tensor": "output", "tensor": "input"},
    "all_to_all_single": {"tensor": "input"},
}

#: DeepSpeed's default of ``timeout``.
default_pg_timeout = timedelta(minutes=int(os.environ.get("DEEPSPEED_TIMEOUT", "30")))


def __getattr__(name: str) -> Any:
    found = getattr(dist, name)
    return _recorded(found) if name in _COLLECTIVES else found


def _recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    names = _KEYWORDS.get(function.__name__, {})

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        given = {names.get(name, name): value for name, value in kwargs.items() if name not in _OF_THE_LOGGER}
        with comms_logger.recording():
            return function(*args, **given)

    return recorded


def init_distributed(
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = 29500,
    verbose: bool = True,
    timeout: timedelta = default_pg_timeout,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: Any = None,
    rank: int = -1,
    world_size: int = -1,
) -> None:
    """Start the default process group, unless it runs; a collective of all ranks.

    A launcher's environment gives the rank: torchrun's, Slurm's or MPI's. Without one this process is the only rank.
    ``nccl`` becomes ``gloo`` on a CPU.
    """
    if dist.is_initialized() or dist_init_required is False:
        return
    _take_launch(distributed_port)
    own = get_accelerator().communication_backend_name()
    backend = own if dist_backend in (None, "ccl") or (own == "gloo" and dist_backend == "nccl") else dist_backend
    if own == "nccl":
        get_accelerator().set_device(local_device().index)
    if verbose:
        logger.info("Initializing torch.distributed with backend %s", backend)
    dist.init_process_group(backend, init_method=init_method, timeout=timeout, rank=rank, world_size=world_size)


def _take_launch(port: int) -> None:
    """Set the variables that torch reads, from the launcher's."""
    launch = Launch.seen()
    if launch is None:
        given = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    else:
        given = {"RANK": str(launch.rank), "WORLD_SIZE": str(launch.world), "LOCAL_RANK": str(launch.local_rank)}
        given |= {"LOCAL_WORLD_SIZE": str(launch.local_world), "MASTER_ADDR": launch.address}
        given |= {"MASTER_PORT": str(launch.port or port)}
    for name, value in given.items():
        os.environ.setdefault(name, value)


def get_local_rank() -> int:
    """This process's rank among those of its host."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def inference_all_reduce(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
    """All-reduce."""
    return dist.all_reduce(tensor, op, group, async_op)


def reduce_scatter_fn(
    output_tensor: Any,
    tensor: Any,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    prof: Any = None,
    debug: Any = None,
) -> Any:
    """Reduce-scatter of one flat tensor."""
    return dist.reduce_scatter_tensor(output_tensor, tensor, op, group, async_op)


def has_all_gather_into_tensor() -> bool:
    """True: torch has it."""
    return True


def has_all_reduce_coalesced() -> bool:
    """True: torch has it."""
    return True


def has_coalescing_manager() -> bool:
    """True: torch has it."""
    return True


def has_reduce_scatter_tensor() -> bool:
    """True: torch has it."""
    return True


def get_all_ranks_from_group(group: Any = None) -> list[int]:
    """The ranks of a group."""
    return dist.get_process_group_ranks(group)


def new_group(ranks: list[int]) -> Any:
    """A group of these ranks; a collective of all ranks."""
    return dist.new_group(ranks)


def get_world_group() -> Any:
    """The group of all ranks."""
    return dist.group.WORLD


def allgather_fn(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False, debug: Any = None
) -> Any:
    """All-gather into one flat tensor."""
    return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)
