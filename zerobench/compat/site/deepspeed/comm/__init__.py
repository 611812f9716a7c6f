"""``deepspeed.comm``, of zerobench."""

from typing import Any

from deepspeed.comm import comm
from zerobench.compat import comm as _comm
from zerobench.compat.comm import *


def __getattr__(name: str) -> Any:
    return getattr(_comm, name)
