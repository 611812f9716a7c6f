"""``deepspeed.runtime.zero.stage3``, of zerobench."""

from zerobench.compat.optim.optimizers import DeepSpeedZeroOptimizer_Stage3
from zerobench.compat.profiling.memory_estimates import (
    estimate_zero3_model_states_mem_needs,
    estimate_zero3_model_states_mem_needs_all_cold,
    estimate_zero3_model_states_mem_needs_all_live,
)
from zerobench.compat.zero import unwrap_model_for_generation
