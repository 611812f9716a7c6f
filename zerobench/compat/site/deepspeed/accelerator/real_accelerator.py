"""``deepspeed.accelerator.real_accelerator``, of zerobench."""

from zerobench.compat.accelerator import get_accelerator
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
