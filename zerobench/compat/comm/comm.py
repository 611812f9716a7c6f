"""``deepspeed.comm``: torch.distributed's names, and the start of the process group."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from zerobench.compat.accelerator.accelerator import get_accelerator, local_device
from zerobench.compat.comm.collectives import COLLECTIVES, P2POp, ReduceOp, all_gather_coalesced, collective
from zerobench.compat.comm.comms_logger import (
    comms_logger,
    configure,
    get_comm_operation_count,
    get_logged_comm_ops,
    has_comm_data,
    log_summary,
    reset_log,
)
from zerobench.compat.comm.launched import (
    get_local_rank_from_launcher,
    get_world_rank_from_launcher,
    get_world_size_from_launcher,
)
from zerobench.compat.log import logger
from zerobench.machine.launch import Launch

__all__ = [
    "P2POp",
    "ReduceOp",
    "TorchBackend",
    "all_gather_coalesced",
    "allgather_fn",
    "comms_logger",
    "configure",
    "default_pg_timeout",
    "get_all_ranks_from_group",
    "get_comm_operation_count",
    "get_global_rank",
    "get_local_rank",
    "get_local_rank_from_launcher",
    "get_logged_comm_ops",
    "get_world_group",
    "get_world_rank_from_launcher",
    "get_world_size_from_launcher",
    "has_all_gather_into_tensor",
    "has_all_reduce_coalesced",
    "has_coalescing_manager",
    "has_comm_data",
    "has_reduce_scatter_tensor",
    "init_distributed",
    "log_summary",
    "mpi_discovery",
    "new_group",
    "reduce_scatter_fn",
    "reset_log",
    "timed_op",
]

#: DeepSpeed's default of ``timeout``.
default_pg_timeout = timedelta(minutes=int(os.environ.get("DEEPSPEED_TIMEOUT", "10")))


def __getattr__(name: str) -> Any:
    if name == "cdb":
        return TorchBackend() if dist.is_initialized() else None
    return collective(name) if name in COLLECTIVES else getattr(dist, name)


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
    ``nccl`` becomes ``gloo`` on a CPU. A ``DeepSpeedConfig`` configures the communications logger.
    """
    configure(config)
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


class TorchBackend:
    """``cdb``: the process group as an object; its methods are the functions of this module. None if no group runs."""

    name = "torch"

    def is_initialized(self) -> bool:
        """Whether a group runs."""
        return dist.is_initialized()

    def __getattr__(self, name: str) -> Any:
        return globals()[name] if name in __all__ else globals()["__getattr__"](name)


def timed_op(func: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose collectives the logger records under its argument ``log_name``, if it has one."""

    @functools.wraps(func)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with comms_logger.recording(kwargs.get("log_name"), bool(kwargs.get("prof", False))):
            return func(*args, **kwargs)

    return timed


def mpi_discovery(distributed_port: int = 29500, verbose: bool = True) -> None:
    """Set the variables that torch reads from those of MPI, or of another launcher.

    Raises:
        RuntimeError: there is no launcher.
    """
    if Launch.seen() is None:
        raise RuntimeError("no launcher has set the rank of this process; start it by mpirun, srun or torchrun")
    _take_launch(distributed_port)
    if verbose:
        logger.info("Discovered %s", {name: os.environ[name] for name in VARIABLES})


#: The variables that torch reads.
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def _take_launch(port: int) -> None:
    """Set the variables that torch reads, from the launcher's."""
    launch = Launch.seen()
    if launch is None:
        given = dict(zip(VARIABLES, ("0", "1", "0", "1", "127.0.0.1", "0"), strict=True))
    else:
        given = {"RANK": str(launch.rank), "WORLD_SIZE": str(launch.world), "LOCAL_RANK": str(launch.local_rank)}
        given |= {"LOCAL_WORLD_SIZE": str(launch.local_world), "MASTER_ADDR": launch.address}
        given |= {"MASTER_PORT": str(launch.port or port)}
    for name, value in given.items():
        os.environ.setdefault(name, value)


def get_local_rank() -> int:
    """This process's rank among those of its host."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def reduce_scatter_fn(
    output_tensor: Any,
    tensor: Any,
    op: Any = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    prof: Any = False,
    debug: Any = None,
) -> Any:
    """Reduce-scatter of one flat tensor."""
    return collective("reduce_scatter_tensor")(output_tensor, tensor, op, group, async_op, prof)


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


def get_global_rank(group: Any = None, group_rank: int = 0) -> int:
    """The rank among all ranks of a group's rank."""
    return group_rank if group is None else dist.get_global_rank(group, group_rank)


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
    return collective("all_gather_into_tensor")(output_tensor, input_tensor, group, async_op)
