"""``deepspeed.initialize`` and DeepSpeed's engine class."""
