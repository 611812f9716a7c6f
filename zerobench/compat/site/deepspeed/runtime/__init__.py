"""``deepspeed.runtime``, of zerobench."""

from deepspeed.runtime import config, dataloader, engine, lr_schedules, zero
