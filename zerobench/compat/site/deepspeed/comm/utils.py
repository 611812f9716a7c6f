"""``deepspeed.comm.utils``, of zerobench."""

from zerobench.compat.comm.launched import (
    get_local_rank_from_launcher,
    get_world_rank_from_launcher,
    get_world_size_from_launcher,
)
