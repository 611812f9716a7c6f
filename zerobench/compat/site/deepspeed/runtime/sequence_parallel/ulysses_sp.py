"""``deepspeed.runtime.sequence_parallel.ulysses_sp``, of zerobench."""

from zerobench.compat.refused import UlyssesSPAttentionHF, UlyssesSPDataLoaderAdapter
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
