"""``deepspeed.runtime.fp16.loss_scaler``, of zerobench."""

from zerobench.engine.optim.loss_scaler import LossScaler

DynamicLossScaler = LossScaler
