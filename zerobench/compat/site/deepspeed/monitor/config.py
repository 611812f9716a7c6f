"""``deepspeed.monitor.config``, of zerobench."""

from zerobench.compat.monitors import get_monitor_config
