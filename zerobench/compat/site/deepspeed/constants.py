"""``deepspeed.constants``, of zerobench."""

from zerobench.compat.comm import default_pg_timeout
from zerobench.compat.unoffered import names_of

TORCH_DISTRIBUTED_DEFAULT_PORT = 29500

__getattr__ = names_of(__name__)
