"""``deepspeed.ops.op_builder``, of zerobench."""

from deepspeed.ops.op_builder import builder
from zerobench.compat.accelerator.op_builders import *
