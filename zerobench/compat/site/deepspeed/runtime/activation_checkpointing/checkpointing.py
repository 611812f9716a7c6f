"""``deepspeed.runtime.activation_checkpointing.checkpointing``, of zerobench."""

from zerobench.compat.activation_checkpointing.checkpointing import *
