"""``deepspeed.comm``, of zerobench."""

from typing import Any

from deepspeed.comm import comm, utils
from zerobench.compat.comm import comm as _comm
from zerobench.compat.comm.comm import *
from zerobench.compat.unoffered import names_of


def __getattr__(name: str) -> Any:
    return getattr(_comm, name) if hasattr(_comm, name) else _unoffered(name)


_unoffered = names_of(__name__)
