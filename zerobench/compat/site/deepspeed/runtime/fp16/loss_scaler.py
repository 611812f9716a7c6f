"""``deepspeed.runtime.fp16.loss_scaler``, of zerobench: scripts compare classes; a scaler by hand is refused."""

from zerobench.compat.optim.loss_scalers import DynamicLossScaler, LossScaler, LossScalerBase
