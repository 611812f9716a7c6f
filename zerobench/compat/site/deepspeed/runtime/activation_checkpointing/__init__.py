"""``deepspeed.runtime.activation_checkpointing``, of zerobench."""

from deepspeed.runtime.activation_checkpointing import checkpointing
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
