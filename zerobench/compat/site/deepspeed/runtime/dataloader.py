"""``deepspeed.runtime.dataloader``, of zerobench."""

