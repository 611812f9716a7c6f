"""``deepspeed.runtime.utils``, of zerobench."""

