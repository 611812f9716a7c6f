"""``deepspeed.runtime.activation_checkpointing``, of zerobench."""

from deepspeed.runtime.activation_checkpointing import checkpointing
