"""``deepspeed.runtime.zero.stage_1_and_2``, of zerobench."""

from zerobench.compat.optim.optimizers import DeepSpeedZeroOptimizer
from zerobench.compat.profiling.memory_estimates import (
    estimate_zero2_model_states_mem_needs,
    estimate_zero2_model_states_mem_needs_all_cold,
    estimate_zero2_model_states_mem_needs_all_live,
)
