"""``deepspeed.checkpoint.utils``, of zerobench."""

