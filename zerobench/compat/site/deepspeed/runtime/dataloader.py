"""``deepspeed.runtime.dataloader``, of zerobench."""

from zerobench.compat.loader import DeepSpeedDataLoader, RepeatingLoader
