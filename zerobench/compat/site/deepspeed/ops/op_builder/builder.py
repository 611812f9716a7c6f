"""``deepspeed.ops.op_builder.builder``, of zerobench."""

from zerobench.compat.accelerator.op_builders import CUDAOpBuilder, OpBuilder
