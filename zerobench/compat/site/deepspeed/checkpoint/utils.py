"""``deepspeed.checkpoint.utils``, of zerobench."""

from zerobench.compat.cloning import clone_tensors_for_torch_save
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
