"""``deepspeed.runtime.dataloader``, of zerobench."""

from zerobench.compat.runtime.loader import DeepSpeedDataLoader, RepeatingLoader
