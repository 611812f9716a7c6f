"""``deepspeed.constants``, of zerobench."""

from zerobench.compat.comm.comm import default_pg_timeout

TORCH_DISTRIBUTED_DEFAULT_PORT = 29500
