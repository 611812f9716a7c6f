"""Launch: the place of this process among ranks that somebody else has started, by the environment it was given.

torchrun, and anything that speaks as it does, sets RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; Slurm's srun and
Open MPI's or MPICH's mpirun have names of their own. MASTER_ADDR names the host of rank 0 and MASTER_PORT a free port
there, which torchrun sets and under the others the user exports.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from zerobench.errors import UsageError

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
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE"),
}

#: Seconds that ranks wait for each other at the start: a launcher may start some much later than others.
MEETING = 120.0


@dataclass(frozen=True)
class Launch:
    """This process's place; ``address`` and ``port`` are where the ranks meet."""

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
        timeout = timedelta(seconds=MEETING)
        master = host and not self.hosted
        kept = TCPStore(self.address, self.port, is_master=master, timeout=timeout, wait_for_workers=False)
        return PrefixStore(f"zerobench/{self.attempt}", kept)

    @classmethod
    def seen(cls, environment: Mapping[str, str] = os.environ) -> Launch | None:
        """The launch that the environment tells of; None where there is none, or Slurm's is only an allocation.

        Raises:
            UsageError: a launch that does not say where the ranks meet.
        """
        for launcher, (rank, world, local_rank, local_world) in _NAMES.items():
            if rank in environment and world in environment:
                own, here = int(environment.get(local_rank, "0")), _leading(environment.get(local_world, "1"))
                meeting = _meeting(launcher, environment)
                return cls(int(environment[rank]), int(environment[world]), own, here, *meeting)
        return None


def _leading(text: str) -> int:
    """Slurm writes ``2(x3),1`` for three hosts of two tasks each and one of one."""
    return int(text.partition("(")[0].partition(",")[0])


def _meeting(launcher: str, environment: Mapping[str, str]) -> tuple[str, int, str, bool]:
    address, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT", "")
    if not address or not port.isdecimal():
        raise UsageError(
            f"started by {launcher}, but MASTER_ADDR and MASTER_PORT do not say where rank 0 is; export them"
        )
    hosted = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return address, int(port), environment.get("TORCHELASTIC_RESTART_COUNT", "0"), hosted
