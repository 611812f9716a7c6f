"""``deepspeed.utils.init_on_device``, of zerobench."""

from zerobench.compat.unoffered import names_of
from zerobench.compat.zero import OnDevice

__getattr__ = names_of(__name__)
