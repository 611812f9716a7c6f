"""``deepspeed.comm``, of zerobench."""

from typing import Any

from zerobench.compat import comm
from zerobench.compat.comm import *


def __getattr__(name: str) -> Any:
    return getattr(comm, name)
