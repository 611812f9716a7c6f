"""``deepspeed.utils.timer``, of zerobench."""

from zerobench.compat.timers import NoopTimer, SynchronizedWallClockTimer, ThroughputTimer, trim_mean
