"""Attributes of DeepSpeed's engine: the arguments of ``initialize()``, counters that scripts restore, and constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from zerobench.engine import Engine

_FILES = "the engine writes its files itself; call save_checkpoint() and load_checkpoint()"
_TIMES = "set wall_clock_breakdown, and read engine.timers"
_SIZES = "checkpoints load on any number of ranks; keep the number of ranks in client_state"
_HOOKS = "register hooks of your own by register_forward_pre_hook() and register_forward_hook()"

#: Attributes that need what the engine does not have, with what to do.
REFUSED_ATTRIBUTES: dict[str, str] = {
    "checkpoint_engine": _FILES,
    "loaded_checkpoint_dp_world_size": _SIZES,
    "loaded_checkpoint_mp_world_size": _SIZES,
    "engine_timers": _TIMES,
    "engine_timers_cache": _TIMES,
    "flops_profiler": "enable the section flops_profiler",
    "module_forward_pre_hook": _HOOKS,
    "module_forward_post_hook": _HOOKS,
}


class Attributes:
    """The names are DeepSpeed's; a constant is DeepSpeed's value without parallelism other than data's."""

    module: nn.Module
    _engine: Engine

    get_global_grad_norm: Callable[[], Tensor | None]

    #: The arguments of ``initialize()``.
    client_optimizer: Any = None
    client_lr_scheduler: Any = None
    training_data: Any = None

    gradient_average = warn_unscaled_loss = save_zero_checkpoint = True
    use_ds_comm = dont_change_device = zenflow = False
    optimized_linear_lora_enabled = optimized_linear_base_weight_sharding = False
    losses = scale_wrt_gas = torch_autocast_z0_gradscaler = None
    all_to_all_group = local_all_to_all_group = None
    checkpoint_mp_rank = 0
    flatten = staticmethod(_flatten_dense_tensors)
    unflatten = staticmethod(_unflatten_dense_tensors)

    @property
    def param_names(self) -> dict[nn.Parameter, str]:
        """The name of each parameter."""
        return {parameter: name for name, parameter in self.module.named_parameters()}

    @property
    def _global_grad_norm(self) -> Tensor | None:
        """Scripts read it in place of get_global_grad_norm()."""
        return self.get_global_grad_norm()

    @property
    def expert_parallel_group(self) -> dict[str, Any]:
        """No groups: there are no experts."""
        return {}

    expert_data_parallel_group = expert_parallel_group

    @property
    def gate_modules(self) -> list[nn.Module]:
        """None: there are no experts."""
        return []

    @property
    def save_non_zero_checkpoint(self) -> bool:
        """Whether this rank saves what all ranks have."""
        return self._engine.ranks.rank == 0

    @property
    def global_steps(self) -> int:
        """Steps, skipped ones included; a script may restore a count of its own."""
        return self._engine.global_steps

    @global_steps.setter
    def global_steps(self, number: int) -> None:
        self._engine.global_steps = int(number)

    @property
    def micro_steps(self) -> int:
        """Finished micro-steps; the next step ends at a multiple of the micro-steps in a step, as in DeepSpeed."""
        return self._engine.micro_steps

    @micro_steps.setter
    def micro_steps(self, number: int) -> None:
        self._engine.accumulation.recount(int(number))

    @property
    def skipped_steps(self) -> int:
        """Steps skipped because of overflow."""
        return self._engine.skipped_steps

    @skipped_steps.setter
    def skipped_steps(self, number: int) -> None:
        self._engine.skipped_steps = int(number)
