"""DeepSpeed's defaults of the keys that have no effect here, are older names, or are refused at other values."""

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
    "zenflow": None,
    "leaf_module": None,
    "cpu_offload": None,
    "cpu_offload_param": None,
    "cpu_offload_use_pin_memory": None,
    "stage3_use_all_reduce_for_fetch_params": False,
    "stage3_gather_fp16_weights_on_model_save": False,
    "legacy_stage1": False,
    "zero_quantized_weights": False,
    "zero_quantized_nontrainable_weights": False,
    "zero_quantized_gradients": False,
    "pipeline_loading_checkpoint": False,
    "override_module_apply": True,
    "save_muon_momentum_buffer_in_memory": False,
}
