"""``deepspeed.ops.op_builder``, of zerobench."""

from deepspeed.ops.op_builder import builder
from zerobench.compat.op_builders import *
