"""``deepspeed.accelerator.abstract_accelerator``, of zerobench."""

from zerobench.compat.accelerator import Accelerator as DeepSpeedAccelerator
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
