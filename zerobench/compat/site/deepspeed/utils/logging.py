"""``deepspeed.utils.logging``, of zerobench."""

from zerobench.compat.log import (
    log_dist,
    log_dist_once,
    log_levels,
    logger,
    print_dist,
    set_log_level_from_string,
)
