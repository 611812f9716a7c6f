"""``deepspeed.launcher``, of zerobench."""

from deepspeed.launcher import runner
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
