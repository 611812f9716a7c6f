"""``deepspeed.ops.op_builder``, of zerobench."""

from deepspeed.ops.op_builder import builder
from zerobench.compat.op_builders import *
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
