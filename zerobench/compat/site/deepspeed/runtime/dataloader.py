"""``deepspeed.runtime.dataloader``, of zerobench."""

from zerobench.compat.loader import DeepSpeedDataLoader, RepeatingLoader
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
