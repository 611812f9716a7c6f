"""Launch: which rank this process is among those that a launcher has started, by its environment variables.

torchrun, and anything that speaks as it does, sets RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; Slurm's srun and
Open MPI's or MPICH's mpirun have names of their own. MASTER_ADDR names the host of rank 0 and MASTER_PORT a free port
there, which torchrun sets and under the others the user exports.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from zerobench.errors import UsageError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

#: By launcher: rank, world size, rank on this host, ranks on this host.
_NAMES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "mpirun (Open MPI)": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "mpirun (MPICH)": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
}

#: Seconds that ranks wait for each other at the start: a launcher may start some much later than others.
MEETING = 120.0


@dataclass(frozen=True)
class Launch:
    """Which rank this process is, of how many; the ranks meet at ``address`` and ``port``."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    address: str
    port: int
    attempt: str  # torchrun's count of restarts: ranks of different attempts must not meet
    hosted: bool  # whether the launcher keeps a store at the port, as torchrun does

    @property
    def on_loopback(self) -> bool:
        """Whether the ranks meet, so that all of them are, on one machine's loopback."""
        return self.address == "localhost" or self.address.startswith("127.")

    def store(self, host: bool) -> Store:
        """Where the ranks meet; ``host`` keeps the store here, unless the launcher does."""
        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

        timeout = timedelta(seconds=MEETING)
        master = host and not self.hosted
        kept = TCPStore(self.address, self.port, is_master=master, timeout=timeout, wait_for_workers=False)
        return PrefixStore(f"zerobench/{self.attempt}", kept)

    @classmethod
    def seen(cls, environment: Mapping[str, str] = os.environ) -> Launch | None:
        """The launch that the environment tells of; None if there is none, or Slurm's is an allocation or a shell.

        Raises:
            UsageError: a launch that does not say where the ranks meet.
        """
        launcher = _launcher(environment)
        if launcher is None:
            return None
        rank, world, local_rank, local_world = _NAMES[launcher]
        own, here = int(environment.get(local_rank, "0")), _on_this_host(environment, local_world)
        return cls(int(environment[rank]), int(environment[world]), own, here, *_meeting(launcher, environment))


def _launcher(environment: Mapping[str, str]) -> str | None:
    """The launcher whose names are there; of several, one that names the rank on the host, as srun may set PMI_RANK."""
    present = [name for name, (rank, world, *_) in _NAMES.items() if rank in environment and world in environment]
    chosen = min(present, key=lambda name: _NAMES[name][2] not in environment, default=None)
    # A step of one task is what a shell in an allocation is (srun --pty bash): commands in it are not launched.
    shell = chosen == "srun" and environment["SLURM_STEP_NUM_TASKS"] == "1"
    return None if shell else chosen


def _on_this_host(environment: Mapping[str, str], name: str) -> int:
    """How many ranks this host has; Slurm writes ``2(x3),1`` for three hosts of two tasks each and one of one."""
    counts: list[int] = []
    for part in environment.get(name, "1").split(","):
        count, _, times = part.partition("(x")
        counts += [int(count)] * int(times.rstrip(")") or 1)
    return counts[int(environment.get("SLURM_NODEID", "0"))] if len(counts) > 1 else counts[0]


def _meeting(launcher: str, environment: Mapping[str, str]) -> tuple[str, int, str, bool]:
    address, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT", "")
    if not address or not port.isdecimal():
        raise UsageError(
            f"started by {launcher}, but MASTER_ADDR and MASTER_PORT do not say where rank 0 is; export them"
        )
    hosted = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return address, int(port), environment.get("TORCHELASTIC_RESTART_COUNT", "0"), hosted


def threads_each(world: int, launch: Launch | None = None) -> int:
    """Threads of one rank, so that all ranks on this machine have its cores: ``world`` ranks, or a launch's here."""
    return max(1, len(os.sched_getaffinity(0)) // (launch.local_world if launch else world))
