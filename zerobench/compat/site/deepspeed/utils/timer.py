"""``deepspeed.utils.timer``, of zerobench."""

from zerobench.compat.timers import SynchronizedWallClockTimer, ThroughputTimer, trim_mean
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
