"""``deepspeed.runtime.sequence_parallel``, of zerobench."""

from deepspeed.runtime.sequence_parallel import ulysses_sp
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
