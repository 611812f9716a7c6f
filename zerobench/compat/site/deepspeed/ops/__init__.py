"""``deepspeed.ops``, of zerobench."""

from deepspeed.ops import adagrad, adam, lamb, lion, op_builder, transformer
from zerobench.compat.op_builders import compatible_ops as __compatible_ops__
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
