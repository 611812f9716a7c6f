"""``deepspeed.runtime.utils``, of zerobench."""

from zerobench.compat.memory import see_memory_usage
from zerobench.compat.norms import (
    clip_grad_norm_,
    clip_tensors_by_global_norm,
    get_global_norm,
    get_global_norm_of_tensors,
    get_weight_norm,
    has_inf_or_nan,
    is_invalid_grad_norm,
)
from zerobench.compat.runtime_functions import (
    call_to_str,
    empty_cache,
    ensure_directory_exists,
    filter_empty_parameters,
    get_ma_status,
    get_only_unique_item,
    get_tensor_bytes,
    memory_status,
    move_to_device,
    noop_context,
    noop_decorator,
    partition_uniform,
    prefix_sum_inc,
    set_random_seed,
)
