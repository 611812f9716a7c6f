"""``deepspeed.comm.comm``, of zerobench."""

from typing import Any

from zerobench.compat.comm import comm
from zerobench.compat.unoffered import names_of


def __getattr__(name: str) -> Any:
    return getattr(comm, name) if hasattr(comm, name) else _unoffered(name)


_unoffered = names_of(__name__)
