"""``deepspeed.checkpointing``: activation checkpointing."""
