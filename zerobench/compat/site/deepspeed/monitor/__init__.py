"""``deepspeed.monitor``, of zerobench."""

from deepspeed.monitor import config, monitor
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
