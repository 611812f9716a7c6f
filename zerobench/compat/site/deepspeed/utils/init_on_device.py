"""``deepspeed.utils.init_on_device``, of zerobench."""

from zerobench.compat.zero import OnDevice
