"""``deepspeed.runtime.sequence_parallel.ulysses_sp``, of zerobench."""

from zerobench.compat.refused import UlyssesSPAttentionHF, UlyssesSPDataLoaderAdapter
