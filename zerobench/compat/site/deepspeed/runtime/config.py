"""``deepspeed.runtime.config``, of zerobench."""

from zerobench.compat.config.deepspeed_config import DeepSpeedConfig
from zerobench.compat.unoffered import names_of
from zerobench.engine.errors import ConfigError as DeepSpeedConfigError

__getattr__ = names_of(__name__)
