"""``deepspeed.utils.tensor_fragment``, of zerobench."""

from zerobench.compat.zero.states import *
