"""``deepspeed.runtime.engine``, of zerobench."""

from zerobench.compat.engine.engine import DeepSpeedEngine
from zerobench.compat.optim.optimizers import DeepSpeedOptimizerCallable, DeepSpeedSchedulerCallable
