"""``deepspeed.monitor.config``, of zerobench."""

from zerobench.compat.profiling.monitors import get_monitor_config
