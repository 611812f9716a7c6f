"""``deepspeed.runtime.engine``, of zerobench."""

from zerobench.compat.engine import DeepSpeedEngine
from zerobench.compat.optimizers import DeepSpeedOptimizerCallable, DeepSpeedSchedulerCallable
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
