"""``deepspeed.runtime.fp16``, of zerobench."""
