"""``deepspeed.runtime.engine``, of zerobench."""

