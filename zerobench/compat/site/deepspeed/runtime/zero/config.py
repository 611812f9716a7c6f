"""``deepspeed.runtime.zero.config``, of zerobench."""

from zerobench.compat.zero.status import ZeroStageEnum
