"""``deepspeed.runtime.lr_schedules``, of zerobench."""

from zerobench.compat.schedules import *
