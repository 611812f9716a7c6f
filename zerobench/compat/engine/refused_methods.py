"""Methods of DeepSpeed's engine that need what the reference engine does not have; each refuses and says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

_REDUCES = "the engine reduces gradients in each backward; reduce tensors of your own by deepspeed.comm"
_CLIPS = "the engine clips to gradient_clipping in step(); set that key"
_TIMES = "set wall_clock_breakdown, and read engine.timers"
_DATA = "the caller has the data; change batches in collate_fn or in the loop"
_TUNES = "the engine has no autotuning"
_EXPERTS = "the engine shards data-parallel training over all ranks and has no other parallelism"
_COMPILES = "there is no DeepCompile; compile() does nothing"
_OPTIMIZERS = "the configuration or the argument optimizer of initialize() gives the optimizer"
_FILES = "the engine arranges its files itself"

#: Why each is refused.
REASONS: dict[str, str] = {
    **dict.fromkeys(("allreduce_bucket", "allreduce_and_copy", "allreduce_no_retain"), _REDUCES),
    **dict.fromkeys(("buffered_allreduce_fallback", "all_gather_scalar"), _REDUCES),
    **dict.fromkeys(("sparse_allreduce", "sparse_allreduce_bucket", "sparse_allreduce_no_retain"), _REDUCES),
    **dict.fromkeys(("sparse_all_gather",), _REDUCES),
    "clip_fp32_gradients": _CLIPS,
    **dict.fromkeys(("get_wall_clock_timers", "print_forward_breakdown"), _TIMES),
    **dict.fromkeys(("set_data_post_process_func", "set_custom_curriculum_learning_schedule"), _DATA),
    **dict.fromkeys(("data_efficiency_config", "data_sampling_config", "curriculum_learning_config"), _DATA),
    **dict.fromkeys(("random_ltd_config", "random_ltd_initialize"), _DATA),
    **dict.fromkeys(("autotuning_start_profile_step", "autotuning_end_profile_step", "autotuning_metric"), _TUNES),
    **dict.fromkeys(("autotuning_metric_path", "autotuning_model_info_path"), _TUNES),
    **dict.fromkeys(("load_moe_state_dict", "tensor_parallel_config"), _EXPERTS),
    **dict.fromkeys(("get_autosp_backend", "get_autotp_backend", "get_deepcompile_backend"), _COMPILES),
    **dict.fromkeys(("get_deepspeed_compile_backend", "get_compile_time", "register_compile_pass"), _COMPILES),
    "get_optimizer_configuration": _OPTIMIZERS,
    **dict.fromkeys(("aio_config", "swap_tensor_config"), _FILES),
    "torch_autocast_lower_precision_safe_modules": "torch.autocast decides which operations are in lower precision",
}


class RefusedMethods:
    """A method for each name of :data:`REASONS`."""


def _refusing(name: str, reason: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"engine.{name}() is not offered: {reason}")

    refuse.__name__, refuse.__doc__ = name, f"Refuse: {reason}."
    return refuse


for _name, _reason in REASONS.items():
    setattr(RefusedMethods, _name, _refusing(_name, _reason))
