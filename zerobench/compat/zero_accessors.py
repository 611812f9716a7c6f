"""Methods that return one key of ``zero_optimization`` each; the names are DeepSpeed's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def _key(name: str, default: Any) -> Callable[[Any], Any]:
    """A method that returns the key, or DeepSpeed's default of it."""

    def read(engine: Any) -> Any:
        return engine._settings.section("zero_optimization").get(name, default)

    read.__doc__ = f"``zero_optimization.{name}``."
    return read


class ZeroAccessors:
    """The keys as the configuration gives them."""

    zero_reduce_bucket_size = _key("reduce_bucket_size", 500_000_000)
    zero_allgather_bucket_size = _key("allgather_bucket_size", 500_000_000)
    zero_sub_group_size = _key("sub_group_size", 1_000_000_000)
    zero_prefetch_bucket_size = _key("stage3_prefetch_bucket_size", 50_000_000)
    zero_param_persistence_threshold = _key("stage3_param_persistence_threshold", 100_000)
    zero_model_persistence_threshold = _key("stage3_model_persistence_threshold", sys.maxsize)
    zero_max_live_parameters = _key("stage3_max_live_parameters", 1_000_000_000)
    zero_max_reuse_distance = _key("stage3_max_reuse_distance", 1_000_000_000)
    zero_module_granularity_threshold = _key("stage3_module_granularity_threshold", 0)
    zero_allgather_sequential = _key("stage3_allgather_sequential", False)
    zero_contiguous_gradients = _key("contiguous_gradients", True)
    zero_reduce_scatter = _key("reduce_scatter", True)
    zero_allgather_partitions = _key("allgather_partitions", True)
    zero_round_robin_gradients = _key("round_robin_gradients", False)
    zero_ignore_unused_parameters = _key("ignore_unused_parameters", True)
    zero_load_from_fp32_weights = _key("load_from_fp32_weights", True)
    zero_elastic_checkpoint = _key("elastic_checkpoint", False)
    zero_hpz_partition_size = _key("zero_hpz_partition_size", 1)
    zero_quantized_weights = _key("zero_quantized_weights", False)
    zero_quantized_nontrainable_weights = _key("zero_quantized_nontrainable_weights", False)
    zero_quantized_gradients = _key("zero_quantized_gradients", False)
