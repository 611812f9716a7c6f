"""``deepspeed.monitor``, of zerobench."""

from deepspeed.monitor import config, monitor
