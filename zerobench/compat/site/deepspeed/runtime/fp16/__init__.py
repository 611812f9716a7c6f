"""``deepspeed.runtime.fp16``, of zerobench."""

from deepspeed.runtime.fp16 import loss_scaler
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
