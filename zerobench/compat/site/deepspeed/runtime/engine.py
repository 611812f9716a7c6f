"""``deepspeed.runtime.engine``, of zerobench."""

from zerobench.compat.engine import DeepSpeedEngine
from zerobench.compat.optimizers import DeepSpeedOptimizerCallable, DeepSpeedSchedulerCallable
