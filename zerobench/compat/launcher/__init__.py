"""``zerobench launch``: DeepSpeed's launcher, built on torch.distributed.run."""
