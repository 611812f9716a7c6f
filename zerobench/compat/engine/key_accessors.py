"""Methods of DeepSpeed's engine that return a key of a section, or what follows from keys; its names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import IterableDataset

from zerobench.compat.config.defaults import ZERO_WITHOUT_EFFECT


def _key(path: str, default: Any) -> Callable[[Any], Any]:
    """A method that returns the key at ``section.key`` or ``section.key.key``, or DeepSpeed's default of it."""
    section, *keys = path.split(".")

    def read(engine: Any) -> Any:
        value = engine._settings.section(section)
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return default if value is None else value

    read.__doc__ = f"``{path}``."
    return read


def _without_effect(key: str) -> Callable[[Any], Any]:
    """A method that returns a key of ``zero_optimization`` that has no effect."""
    return _key(f"zero_optimization.{key}", ZERO_WITHOUT_EFFECT[key])


def _never(what: str) -> Callable[[Any], bool]:
    """A method that returns False, because the engine does not have what it asks for."""

    def answer(engine: Any) -> bool:
        return False

    answer.__doc__ = f"False: the engine has no {what}."
    return answer


class KeyAccessors:
    """The keys as the configuration gives them."""

    zero_reduce_bucket_size = _key("zero_optimization.reduce_bucket_size", 500_000_000)
    zero_allgather_bucket_size = _key("zero_optimization.allgather_bucket_size", 500_000_000)
    zero_sub_group_size = _key("zero_optimization.sub_group_size", 1_000_000_000)
    zero_prefetch_bucket_size = _key("zero_optimization.stage3_prefetch_bucket_size", 50_000_000)
    zero_param_persistence_threshold = _key("zero_optimization.stage3_param_persistence_threshold", 100_000)
    zero_model_persistence_threshold = _without_effect("stage3_model_persistence_threshold")
    zero_max_live_parameters = _key("zero_optimization.stage3_max_live_parameters", 1_000_000_000)
    zero_max_reuse_distance = _without_effect("stage3_max_reuse_distance")
    zero_module_granularity_threshold = _without_effect("stage3_module_granularity_threshold")
    zero_allgather_sequential = _without_effect("stage3_allgather_sequential")
    zero_contiguous_gradients = _without_effect("contiguous_gradients")
    zero_reduce_scatter = _without_effect("reduce_scatter")
    zero_allgather_partitions = _without_effect("allgather_partitions")
    zero_round_robin_gradients = _without_effect("round_robin_gradients")
    zero_ignore_unused_parameters = _without_effect("ignore_unused_parameters")
    zero_load_from_fp32_weights = _without_effect("load_from_fp32_weights")
    zero_elastic_checkpoint = _without_effect("elastic_checkpoint")
    zero_multi_rank_bucket_allreduce = _without_effect("use_multi_rank_bucket_allreduce")
    zero_compute_grad_norm = _without_effect("compute_grad_norm")
    zero_parameter_alignment = _without_effect("parameter_alignment")
    zero_log_trace_cache_warnings = _without_effect("log_trace_cache_warnings")
    is_sanity_checks_enabled = _without_effect("enable_sanity_checks")
    zero_hpz_partition_size = _without_effect("zero_hpz_partition_size")
    zero_partial_offload = _key("zero_optimization.offload_optimizer.ratio", 1.0)
    super_offload = _key("zero_optimization.offload_optimizer.super_offload", False)
    cpuadam_cores_perc = _key("zero_optimization.offload_optimizer.cpuadam_cores_perc", 0.9)
    flops_profiler_recompute_fwd_factor = _key("flops_profiler.recompute_fwd_factor", 0.0)
    flops_profiler_profile_step = _key("flops_profiler.profile_step", 1)
    flops_profiler_module_depth = _key("flops_profiler.module_depth", -1)
    flops_profiler_top_modules = _key("flops_profiler.top_modules", 1)
    flops_profiler_detailed = _key("flops_profiler.detailed", True)
    flops_profiler_output_file = _key("flops_profiler.output_file", None)
    use_node_local_storage = _key("checkpoint.use_node_local_storage", False)
    load_universal_checkpoint = _key("checkpoint.load_universal", False)
    checkpoint_serialization_enabled = _key("checkpoint.checkpoint_serialization", True)
    optimizer_legacy_fusion = _key("optimizer.legacy_fusion", False)

    zero_legacy_stage1 = _never("legacy_stage1")
    zero_quantized_weights = zero_quantized_nontrainable_weights = _never("quantised weights")
    zero_quantized_gradients = _never("quantised gradients")
    zero_save_muon_momentum_buffer_in_memory = _never("Muon")
    fp16_master_weights_and_gradients = bf16_master_weights_and_gradients = _never("masters in 16 bits")
    bf16_optimizer_states = _never("optimizer states in 16 bits")
    data_efficiency_enabled = data_sampling_enabled = curriculum_learning_enabled = _never("sampling of its own")
    random_ltd_enabled = _never("token dropping")
    autotuning_enabled = autotuning_profile_model_info = _never("autotuning")
    checkpoint_writer_enabled = _never("writer of checkpoints")
    is_deepcompile_enabled = is_deepcompile_active = compile_zero_optimization_stage = _never("compiler")
    compile_autosp = compile_autotp = uses_parallelization_pass_only = is_deepcompile_enabled

    #: Whether compile() was called; it changes nothing.
    is_compiled = False

    def zero_force_ds_cpu_optimizer(self: Any) -> bool:
        """The key of this name; the engine steps offloaded states itself."""
        return bool(self._settings.raw.get("zero_force_ds_cpu_optimizer", True))

    def zero_nvme_offload_optimizer(self: Any) -> bool:
        """Whether optimizer states are in files."""
        return bool(self._engine.config.zero_optimization.offload_optimizer.device == "nvme")

    def checkpoint_tag_validation_enabled(self: Any) -> bool:
        """Whether ``checkpoint.tag_validation`` is not ``Ignore``."""
        return bool(self._tag_validation() != "ignore")

    def checkpoint_tag_validation_fail(self: Any) -> bool:
        """Whether ``checkpoint.tag_validation`` is ``Fail``."""
        return bool(self._tag_validation() == "fail")

    def _tag_validation(self: Any) -> str:
        return str(self._settings.section("checkpoint").get("tag_validation", "Warn")).lower()

    def initial_dynamic_scale(self: Any) -> int:
        """The first loss scale if it is dynamic."""
        return int(2**self._engine.config.fp16.initial_scale_power)

    def dynamic_loss_scale_args(self: Any) -> dict[str, Any]:
        """The parameters of a dynamic loss scale."""
        fp16 = self._engine.config.fp16
        return {
            "init_scale": self.initial_dynamic_scale(),
            "scale_window": fp16.loss_scale_window,
            "delayed_shift": fp16.hysteresis,
            "consecutive_hysteresis": fp16.consecutive_hysteresis,
            "min_scale": fp16.min_loss_scale,
        }

    def is_first_weights_partition_group(self: Any) -> bool:
        """Whether parameters are sharded."""
        return bool(self.zero_optimization_partition_weights())

    def log_level(self: Any) -> str | None:
        """``log_level``."""
        level: str | None = self._settings.raw.get("log_level")
        return level

    def autotp_size(self) -> int:
        """0: there is no tensor parallelism."""
        return 0

    def zenflow_config(self) -> None:
        """None: there is no ZenFlow."""

    def is_map_style_dataset(self, obj: Any) -> bool:
        """Whether the dataset has indices and a length."""
        return hasattr(obj, "__getitem__") and hasattr(obj, "__len__")

    def is_iterable_style_dataset(self, obj: Any) -> bool:
        """Whether the dataset is torch's iterable one."""
        return isinstance(obj, IterableDataset)
