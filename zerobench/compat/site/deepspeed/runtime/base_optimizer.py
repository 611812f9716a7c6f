"""``deepspeed.runtime.base_optimizer``, of zerobench."""

from zerobench.engine.optim.optimizer import ZeroOptimizer as DeepSpeedOptimizer
