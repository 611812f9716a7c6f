"""The configuration read through methods, as DeepSpeed's engine has it."""

from __future__ import annotations

from typing import Any

import torch

from zerobench.compat.config import Settings
from zerobench.compat.config.deepspeed_config import name_of_optimizer
from zerobench.engine import Engine


class ConfigAccessors:
    """Methods that return one value of the configuration each; the names are DeepSpeed's."""

    _settings: Settings
    _engine: Engine
    _micro_batch: int
    client_optimizer: Any

    def train_micro_batch_size_per_gpu(self) -> int:
        """Samples of one micro-step on one rank."""
        return self._micro_batch

    def gradient_accumulation_steps(self) -> int:
        """Micro-steps in a step."""
        return self._engine.accumulation.steps

    def train_batch_size(self) -> int:
        """Samples of one step on all ranks."""
        return self._micro_batch * self.gradient_accumulation_steps() * self._engine.ranks.world

    def get_batch_info(self) -> tuple[int, int, int]:
        """Batch, micro-batch and micro-steps."""
        return self.train_batch_size(), self.train_micro_batch_size_per_gpu(), self.gradient_accumulation_steps()

    def managed_gradient_accumulation(self) -> bool:
        """Whether the engine or a declaration ends a step; else each step() does."""
        return self._engine.accumulation.managed

    def zero_optimization(self) -> bool:
        """Whether any state is sharded."""
        return self.zero_optimization_stage() > 0

    def zero_optimization_stage(self) -> int:
        """The ZeRO stage."""
        return self._engine.config.zero_optimization.stage

    def zero_optimization_partition_gradients(self) -> bool:
        """Whether gradients are sharded."""
        return self.zero_optimization_stage() >= 2

    def zero_optimization_partition_weights(self) -> bool:
        """Whether parameters are sharded."""
        return self.zero_optimization_stage() >= 3

    def zero_offload_optimizer(self) -> dict[str, Any] | None:
        """The section offload_optimizer; None without one."""
        return self._settings.section("zero_optimization").get("offload_optimizer")

    def zero_offload_param(self) -> dict[str, Any] | None:
        """The section offload_param; None without one."""
        return self._settings.section("zero_optimization").get("offload_param")

    def zero_cpu_offload(self) -> bool:
        """Whether optimizer states are in host memory."""
        return self._engine.config.zero_optimization.offload_optimizer.device == "cpu"

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        """Whether whole weights are exported at stage 3."""
        zero = self._settings.section("zero_optimization")
        return bool(zero.get("stage3_gather_16bit_weights_on_model_save", False))

    def fp16_enabled(self) -> bool:
        """Whether parameters are fp16."""
        return self._engine.config.fp16.enabled

    def fp16_auto_cast(self) -> bool:
        """Whether inputs are cast to fp16."""
        return self.fp16_enabled() and bool(self._settings.section("fp16").get("auto_cast", False))

    def bfloat16_enabled(self) -> bool:
        """Whether parameters are bf16."""
        return self._engine.config.bf16.enabled

    def get_data_types(self) -> tuple[Any, Any]:
        """The dtypes of parameters and of gradient sums."""
        return self._engine.config.dtype, self._engine.config.accumulator_dtype

    def dynamic_loss_scale(self) -> bool:
        """Whether the loss scale changes."""
        return self._engine.scaler.dynamic

    def loss_scale(self) -> float:
        """The loss scale."""
        return self._engine.loss_scale

    def gradient_clipping(self) -> float:
        """The largest norm of a step's gradient; 0 for any."""
        return self._engine.config.gradient_clipping

    def optimizer_name(self) -> str | None:
        """The class of the client's optimizer, else the type of the configuration's."""
        if self.client_optimizer is not None:
            return type(self.client_optimizer).__name__
        return name_of_optimizer(self._settings.section("optimizer"))

    def optimizer_params(self) -> dict[str, Any] | None:
        """The parameters of the configuration's optimizer."""
        return self._settings.section("optimizer").get("params")

    def scheduler_name(self) -> str | None:
        """The type of the configuration's schedule."""
        return self._settings.section("scheduler").get("type")

    def scheduler_params(self) -> dict[str, Any] | None:
        """The parameters of the configuration's schedule."""
        return self._settings.section("scheduler").get("params")

    def steps_per_print(self) -> float | None:
        """Steps from one line of progress to the next; None for no lines."""
        every = self._settings.raw.get("steps_per_print")
        return int(every) if isinstance(every, float) and every.is_integer() else every

    def wall_clock_breakdown(self) -> bool:
        """Whether times are printed."""
        return bool(self._settings.raw.get("wall_clock_breakdown", False))

    def dump_state(self) -> bool:
        """Whether the resolved configuration is printed."""
        return bool(self._settings.raw.get("dump_state", False))

    def dataloader_drop_last(self) -> bool:
        """Whether the loader leaves a short last batch out."""
        return bool(self._settings.raw.get("dataloader_drop_last", False))

    def memory_breakdown(self) -> bool:
        """Whether memory is printed after each step."""
        return bool(self._settings.raw.get("memory_breakdown", False))

    def flops_profiler_enabled(self) -> bool:
        """Whether the FLOPs of a forward are printed."""
        return bool(self._settings.section("flops_profiler").get("enabled", False))

    def zero_overlap_comm(self) -> bool:
        """Whether communication overlaps with backward."""
        return self._engine.config.zero_optimization.overlap_comm

    def zero_use_cpu_optimizer(self) -> bool:
        """Whether optimizer states are in host memory or in files."""
        return self._engine.config.zero_optimization.offload_optimizer.device != "none"

    def zero_allow_untested_optimizer(self) -> bool:
        """The key of this name; the engine takes every optimizer whose step is elementwise."""
        return bool(self._settings.raw.get("zero_allow_untested_optimizer", False))

    @property
    def communication_data_type(self) -> torch.dtype:
        """The dtype in which gradients travel."""
        return self._engine.config.communication_dtype

    def postscale_gradients(self) -> bool:
        """Whether ``prescale_gradients`` is not set; the mean is taken after the sum in any case."""
        return not self._settings.raw.get("prescale_gradients", False)

    def gradient_predivide_factor(self) -> float:
        """The key of this name; gradients are not divided before the sum in any case."""
        return float(self._settings.raw.get("gradient_predivide_factor", 1.0))

    def torch_autocast_enabled(self) -> bool:
        """Whether forwards run under torch.autocast."""
        return bool(self._settings.section("torch_autocast").get("enabled", False))

    def torch_autocast_dtype(self) -> torch.dtype:
        """The dtype of torch.autocast."""
        return torch.bfloat16
