"""``deepspeed.runtime.activation_checkpointing.checkpointing``, of zerobench."""

from zerobench.compat.activation_checkpointing import *
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
