"""``deepspeed.runtime.sequence_parallel``, of zerobench."""

from deepspeed.runtime.sequence_parallel import ulysses_sp
