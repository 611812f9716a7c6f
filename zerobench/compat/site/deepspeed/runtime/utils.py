"""``deepspeed.runtime.utils``, of zerobench."""

from zerobench.compat.profiling.memory import see_memory_usage
from zerobench.compat.runtime.norms import (
    clip_grad_norm_,
    clip_tensors_by_global_norm,
    combine_grad_norm_groups,
    get_flattened_grad_norm,
    get_global_norm,
    get_global_norm_of_tensors,
    get_grad_zeros,
    get_weight_norm,
    has_inf_or_nan,
    is_invalid_grad_norm,
)
from zerobench.compat.runtime.overflow_check import CheckOverflow
from zerobench.compat.runtime.parts import partition_balanced, partition_uniform, prefix_sum_inc
from zerobench.compat.runtime.runtime_functions import (
    DummyOptim,
    align_dense_tensors,
    call_to_str,
    copy_to_device,
    empty_cache,
    ensure_directory_exists,
    filter_empty_parameters,
    get_inactive_params,
    get_ma_status,
    get_only_unique_item,
    get_tensor_bytes,
    is_model_parallel_parameter,
    memory_status,
    move_to_device,
    noop_context,
    noop_decorator,
    set_random_seed,
)
