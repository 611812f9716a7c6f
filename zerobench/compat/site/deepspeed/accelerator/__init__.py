"""``deepspeed.accelerator``, of zerobench."""

from deepspeed.accelerator import abstract_accelerator, real_accelerator
from zerobench.compat.accelerator import Accelerator, get_accelerator
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
