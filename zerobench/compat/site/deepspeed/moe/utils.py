"""``deepspeed.moe.utils``, of zerobench."""

from zerobench.compat.moe import *
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
