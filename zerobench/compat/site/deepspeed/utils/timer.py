"""``deepspeed.utils.timer``, of zerobench."""

from zerobench.compat.timers import SynchronizedWallClockTimer, ThroughputTimer, trim_mean
