"""``deepspeed.runtime.sequence_parallel``, of zerobench."""
