"""``deepspeed.runtime``, of zerobench."""

from deepspeed.runtime import (
    activation_checkpointing,
    base_optimizer,
    config,
    config_utils,
    dataloader,
    engine,
    fp16,
    lr_schedules,
    sequence_parallel,
    utils,
    zero,
)
