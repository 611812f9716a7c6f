"""``deepspeed.runtime.config``, of zerobench."""

