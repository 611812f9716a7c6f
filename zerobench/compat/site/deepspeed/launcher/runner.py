"""``deepspeed.launcher.runner``, of zerobench."""

from zerobench.compat.unoffered import names_of

DEEPSPEED_ENVIRONMENT_NAME = ".deepspeed_env"

__getattr__ = names_of(__name__)
