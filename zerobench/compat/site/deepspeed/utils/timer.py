"""``deepspeed.utils.timer``, of zerobench."""

from zerobench.compat.profiling.timers import NoopTimer, SynchronizedWallClockTimer, ThroughputTimer, trim_mean
