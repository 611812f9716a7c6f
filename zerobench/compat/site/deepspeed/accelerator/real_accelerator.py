"""``deepspeed.accelerator.real_accelerator``, of zerobench."""

from zerobench.compat.accelerator.accelerator import get_accelerator, is_current_accelerator_supported, set_accelerator
