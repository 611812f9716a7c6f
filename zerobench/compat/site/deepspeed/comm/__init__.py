"""``deepspeed.comm``, of zerobench."""

from typing import Any

from zerobench.compat import comm
from zerobench.compat.comm import get_local_rank, get_world_group, init_distributed


def __getattr__(name: str) -> Any:
    return getattr(comm, name)
