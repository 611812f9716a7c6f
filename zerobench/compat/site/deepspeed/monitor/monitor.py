"""``deepspeed.monitor.monitor``, of zerobench."""

from zerobench.compat.profiling.monitors import MonitorMaster
