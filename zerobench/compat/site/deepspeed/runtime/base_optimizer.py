"""``deepspeed.runtime.base_optimizer``, of zerobench."""

from zerobench.compat.unoffered import names_of
from zerobench.engine.optim.optimizer import ZeroOptimizer as DeepSpeedOptimizer

__getattr__ = names_of(__name__)
