"""``deepspeed.comm.comm``, of zerobench."""

from typing import Any

from zerobench.compat import comm


def __getattr__(name: str) -> Any:
    return getattr(comm, name)
