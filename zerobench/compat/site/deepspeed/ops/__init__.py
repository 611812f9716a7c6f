"""``deepspeed.ops``, of zerobench."""

from deepspeed.ops import adagrad, adam, lamb, lion, op_builder, transformer
from zerobench.compat.accelerator.op_builders import compatible_ops as __compatible_ops__
