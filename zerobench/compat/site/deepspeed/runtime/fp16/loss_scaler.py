"""``deepspeed.runtime.fp16.loss_scaler``, of zerobench."""

from zerobench.compat.unoffered import names_of
from zerobench.engine.optim.loss_scaler import LossScaler

DynamicLossScaler = LossScaler

__getattr__ = names_of(__name__)
