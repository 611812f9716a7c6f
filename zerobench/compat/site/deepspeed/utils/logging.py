"""``deepspeed.utils.logging``, of zerobench."""

from zerobench.compat.log import log_dist, logger
