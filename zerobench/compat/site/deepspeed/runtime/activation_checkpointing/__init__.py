"""``deepspeed.runtime.activation_checkpointing``, of zerobench."""
