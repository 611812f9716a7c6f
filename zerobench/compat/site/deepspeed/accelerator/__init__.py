"""``deepspeed.accelerator``, of zerobench."""

from zerobench.compat.accelerator import Accelerator, get_accelerator
