"""``deepspeed.runtime.fp16.loss_scaler``, of zerobench: its names refuse, because the engine scales losses."""
