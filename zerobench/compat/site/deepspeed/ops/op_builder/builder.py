"""``deepspeed.ops.op_builder.builder``, of zerobench."""

from zerobench.compat.op_builders import CUDAOpBuilder, OpBuilder
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
