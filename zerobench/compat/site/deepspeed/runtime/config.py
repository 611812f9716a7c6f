"""``deepspeed.runtime.config``, of zerobench."""

from zerobench.engine.errors import ConfigError as DeepSpeedConfigError
