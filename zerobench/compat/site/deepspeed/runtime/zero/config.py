"""``deepspeed.runtime.zero.config``, of zerobench."""

from zerobench.compat.config.deepspeed_config import DeepSpeedZeroConfig
from zerobench.compat.zero.status import ZeroStageEnum
