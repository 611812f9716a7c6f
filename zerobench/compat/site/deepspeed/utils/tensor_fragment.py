"""``deepspeed.utils.tensor_fragment``, of zerobench."""

from zerobench.compat.states import *
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
