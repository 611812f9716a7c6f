"""``deepspeed.monitor.monitor``, of zerobench."""

from zerobench.compat.monitors import MonitorMaster
