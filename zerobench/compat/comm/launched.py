"""``deepspeed.comm.utils``: this process in the launcher's environment; one process without a launcher."""

from __future__ import annotations

from zerobench.machine.launch import Launch


def get_local_rank_from_launcher() -> int:
    """This process's rank among those of its host."""
    launch = Launch.seen()
    return launch.local_rank if launch else 0


def get_world_rank_from_launcher() -> int:
    """This process's rank."""
    launch = Launch.seen()
    return launch.rank if launch else 0


def get_world_size_from_launcher() -> int:
    """The number of ranks."""
    launch = Launch.seen()
    return launch.world if launch else 1
