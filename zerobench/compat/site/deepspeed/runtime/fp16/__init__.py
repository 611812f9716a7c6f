"""``deepspeed.runtime.fp16``, of zerobench."""

from deepspeed.runtime.fp16 import loss_scaler
