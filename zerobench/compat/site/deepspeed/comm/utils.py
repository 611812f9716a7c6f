"""``deepspeed.comm.utils``, of zerobench."""

from zerobench.compat.launched import (
    get_local_rank_from_launcher,
    get_world_rank_from_launcher,
    get_world_size_from_launcher,
)
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
