"""``deepspeed.ops.op_builder.builder``, of zerobench."""

from zerobench.compat.op_builders import CUDAOpBuilder, OpBuilder
