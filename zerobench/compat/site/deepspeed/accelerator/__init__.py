"""``deepspeed.accelerator``, of zerobench."""

from deepspeed.accelerator import abstract_accelerator, real_accelerator
from zerobench.compat.accelerator.accelerator import (
    Accelerator,
    get_accelerator,
    is_current_accelerator_supported,
    set_accelerator,
)
