"""DeepSpeed's defaults of the keys that have no effect here."""

from __future__ import annotations

import sys
from typing import Any

#: Keys of the top level.
WITHOUT_EFFECT: dict[str, Any] = {
    "prescale_gradients": False,
    "gradient_predivide_factor": 1.0,
    "zero_allow_untested_optimizer": False,
    "disable_allgather": False,
}

#: Keys of ``zero_optimization``.
ZERO_WITHOUT_EFFECT: dict[str, Any] = {
    "contiguous_gradients": True,
    "reduce_scatter": True,
    "use_multi_rank_bucket_allreduce": True,
    "allgather_partitions": True,
    "compute_grad_norm": True,
    "load_from_fp32_weights": True,
    "elastic_checkpoint": False,
    "stage3_model_persistence_threshold": sys.maxsize,
    "stage3_max_reuse_distance": 1_000_000_000,
    "stage3_module_granularity_threshold": 0,
    "stage3_allgather_sequential": False,
    "ignore_unused_parameters": True,
    "round_robin_gradients": False,
    "parameter_alignment": False,
    "zero_hpz_partition_size": 1,
    "memory_efficient_linear": True,
    "log_trace_cache_warnings": False,
    "enable_sanity_checks": False,
}
