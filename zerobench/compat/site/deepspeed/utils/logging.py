"""``deepspeed.utils.logging``, of zerobench."""

from zerobench.compat.log import (
    LoggerFactory,
    get_current_level,
    get_dist_msg,
    get_log_level_from_string,
    log_dist,
    log_dist_once,
    log_levels,
    logger,
    print_configuration,
    print_dist,
    print_json_dist,
    set_log_level_from_string,
    should_log_le,
    warning_once,
)
