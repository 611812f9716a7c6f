"""``deepspeed.monitor.config``, of zerobench."""

from zerobench.compat.monitors import get_monitor_config
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
