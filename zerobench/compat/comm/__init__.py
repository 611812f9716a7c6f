"""``deepspeed.comm``: torch.distributed by DeepSpeed's names, and its log."""
