"""``deepspeed.runtime.config``, of zerobench."""

from zerobench.compat.config.deepspeed_config import DeepSpeedConfig
from zerobench.engine.errors import ConfigError as DeepSpeedConfigError
