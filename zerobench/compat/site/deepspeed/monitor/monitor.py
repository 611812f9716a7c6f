"""``deepspeed.monitor.monitor``, of zerobench."""

from zerobench.compat.monitors import MonitorMaster
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
