"""``deepspeed.checkpoint.utils``, of zerobench."""

from zerobench.compat.checkpoint.cloning import clone_tensors_for_torch_save
