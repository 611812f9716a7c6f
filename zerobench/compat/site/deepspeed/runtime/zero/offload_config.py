"""``deepspeed.runtime.zero.offload_config``, of zerobench."""

from zerobench.compat.zero.status import OffloadDeviceEnum, OffloadStateTypeEnum
