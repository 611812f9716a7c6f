"""``deepspeed.utils.logging``, of zerobench."""

