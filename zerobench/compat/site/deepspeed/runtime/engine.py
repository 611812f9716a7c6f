"""``deepspeed.runtime.engine``, of zerobench."""

from zerobench.compat.engine import DeepSpeedEngine
