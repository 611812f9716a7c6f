"""The reference engine as a subject."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import zerobench.engine as zero
from zerobench.oracles.optimizer import groups, scheduler_of
from zerobench.oracles.rules import hyperparameters
from zerobench.scenario import Loads, Scenario
from zerobench.subject import Batch, Offloaded, Outcome, State, Subject, Theory
from zerobench.theory.reference import ReferenceTheory
from zerobench.workload.forwards import loss_of

#: The arguments of ``load_checkpoint`` that load a part of a state; DeepSpeed has the same.
LOADS: dict[Loads, dict[str, bool]] = {
    "all": {},
    "without_optimizer": {"load_optimizer_states": False},
    "model": {"load_module_only": True},
}


class Reference(Subject):
    """zerobench's own engine, through its public API."""

    name = "reference"
    promises_bits = True
    moves = True
    resumes = True
    resumes_at_any_world = True
    schedules = True
    steps_scheduler = True
    calls_again = True
    shortens = True
    edits = True
    edits_gradients = True
    takes_rank_0 = True
    takes_buffers_of_rank_0 = True
    loads_parts = True
    loads_refrozen = True
    keeps_tags = True
    keeps_client_state = True
    restores_generators = True
    survives_failed_loads = True
    survives_failures = True
    keeps_hooks = True
    keeps_late_hooks = True
    answers_within_forwards = True
    trains_side_by_side = True
    loads_within_steps = True

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if scenario.replicate > 1:
            return "the reference engine shards over all ranks: it has no hybrid sharding"
        if scenario.schedule == "boundary" and scenario.stage > 1:
            return "the contract's stages 2 and 3 reduce each micro-step: docs/reference/contract.md"
        return None

    @classmethod
    def theory(cls) -> Theory:
        return ReferenceTheory()

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        self.model, self.scenario = model, scenario
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.to_come: int | None = None  # micro-steps of a short step that are still to come
        self.engine, self.optimizer, _, _ = zero.initialize(
            model,
            config(scenario),
            model_parameters=parameter_groups(model, scenario),
            lr_scheduler=scheduler_of(scenario),
            process_group=group,
            device=scenario.device,
        )

    def set_micro_steps(self, number: int) -> None:
        """Declare the boundaries of a short step; in the others the engine counts."""
        self.to_come = number if number < self.scenario.accumulation else None
        if self.to_come is None:
            self.engine.set_gradient_accumulation_boundary(None)

    def micro_step(self, batch: Batch) -> Tensor:
        if self.to_come is not None:
            self.to_come -= 1
            self.engine.set_gradient_accumulation_boundary(self.to_come == 0)
        loss = loss_of(self.scenario, self.engine, batch)
        self.engine.backward(loss)
        if not self.engine.is_gradient_accumulation_boundary():
            self.engine.step()
        return loss.detach()

    def step(self) -> Outcome:
        scale, skipped = self.engine.loss_scale, self.engine.skipped_steps
        self.engine.step()
        return Outcome(self.engine.get_global_grad_norm(), self.engine.skipped_steps > skipped, scale)

    def advance(self) -> None:
        self.engine.step()

    def param_groups(self) -> Sequence[dict[str, Any]]:
        return self.optimizer.param_groups

    def evaluate(self, batch: Batch) -> Tensor:
        self.engine.eval()
        try:
            with torch.no_grad():
                return self.engine(**batch)  # type: ignore[no-any-return]
        finally:
            self.engine.train()

    def parameters(self) -> State:
        return self._read(zero.safe_get_full_fp32_param)

    def gradients(self) -> State:
        return self._read(zero.safe_get_full_grad)

    def _read(self, get: Any) -> State:
        found = {name: get(p) for name, p in self.trained.items()}
        return {name: value for name, value in found.items() if value is not None}

    def model_parameters(self) -> State:
        with zero.GatheredParameters(self.model):
            return {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def optimizer_state(self) -> dict[str, State]:
        found: dict[str, State] = {name: {} for name in self.trained}
        for key in self.optimizer.state_names:  # one kind after another: the engine reads ahead
            for name, p in self.trained.items():
                value = zero.safe_get_full_optimizer_state(p, key)
                assert value is not None
                found[name][key] = value
        return found

    def resident(self) -> dict[str, Sequence[Tensor]]:
        return dict(self.engine.resident())

    def offloaded(self) -> Offloaded:
        return Offloaded(self.engine.stores.host(), self.engine.stores.files())

    def set_parameters(self, values: State) -> None:
        if self.scenario.edits_in_place:
            self._edit(values)
            return
        for name, value in values.items():
            zero.safe_set_full_fp32_param(self.trained[name], value)

    @torch.no_grad()
    def _edit(self, values: State) -> None:
        """In every second Scenario only the first rank edits the parameters."""
        rank = 0 if self.scenario.seed % 4 == 3 else None
        with zero.GatheredParameters([self.trained[name] for name in values], modifier_rank=rank):
            if rank in (None, self.engine.ranks.rank):
                for name, value in values.items():
                    self.trained[name].copy_(value)

    def zero_gradients(self, names: Collection[str]) -> None:
        for p in (self.trained[name] for name in names):
            if (gradient := zero.safe_get_full_grad(p)) is not None:
                zero.safe_set_full_grad(p, torch.zeros_like(gradient))

    def save(self, directory: Path) -> None:
        self.engine.save_checkpoint(directory, self.tag or None, client_state=dict(self.client_state))

    def load(self, directory: Path) -> None:
        _, self.client_state = self.engine.load_checkpoint(directory, self.tag or None, **LOADS[self.scenario.loads])

    def counters(self) -> Mapping[str, int]:
        return {name: getattr(self.engine, name) for name in ("global_steps", "skipped_steps", "micro_steps")}

    def close(self) -> None:
        self.engine.destroy()


def config(scenario: Scenario) -> dict[str, Any]:
    """The engine's configuration of a Scenario."""
    out = shared_config(scenario)
    out["optimizer"] = {"type": scenario.optimizer.name, "params": _optimizer_params(scenario)}
    out["zero_optimization"] |= {
        "chunk_size": scenario.chunk,
        "reduction_schedule": scenario.schedule,
        "offload_optimizer": _offload_optimizer(scenario),
        "offload_param": _offload_param(scenario),
    }
    return out


def shared_config(scenario: Scenario) -> dict[str, Any]:
    """The keys of a Scenario that this engine and DeepSpeed share; the optimizer's keys differ."""
    scale = scenario.loss_scale
    out: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": scenario.micro_batch,
        "gradient_accumulation_steps": scenario.accumulation,
        "gradient_clipping": scenario.clip,
        "zero_optimization": {
            "stage": scenario.stage,
            "overlap_comm": scenario.overlap,
            "reduce_bucket_size": scenario.reduce_bucket,
            "allgather_bucket_size": scenario.allgather_bucket,
            "stage3_prefetch_bucket_size": scenario.prefetch_bucket,
            "stage3_param_persistence_threshold": scenario.persistence,
            "stage3_max_live_parameters": scenario.max_live,
            "sub_group_size": scenario.sub_group,
        },
    }
    if scenario.dtype == "bf16":
        out["bf16"] = {"enabled": True}
    if scenario.dtype == "fp16":
        out["fp16"] = {
            "enabled": True,
            "loss_scale": scale.static,
            "initial_scale_power": scale.initial_power,
            "loss_scale_window": scale.window,
            "hysteresis": scale.hysteresis,
            "consecutive_hysteresis": scale.consecutive_hysteresis,
            "min_loss_scale": scale.minimum,
        }
    if scenario.communication_dtype:
        out["communication_data_type"] = scenario.communication_dtype
    if scenario.accumulator_dtype:
        out["data_types"] = {"grad_accum_dtype": scenario.accumulator_dtype}
    return out


def _offload_optimizer(scenario: Scenario) -> dict[str, Any]:
    section = {"device": scenario.optimizer_at, "ratio": scenario.offload_ratio}
    if scenario.optimizer_at == "nvme":
        pipeline = {"pipeline_read": scenario.pipeline_read, "pipeline_write": scenario.pipeline_write}
        section |= _files(scenario) | pipeline
    return section


def _offload_param(scenario: Scenario) -> dict[str, Any]:
    section: dict[str, Any] = {"device": scenario.parameters_at}
    if scenario.parameters_at == "nvme":
        section |= _files(scenario) | {"max_in_cpu": scenario.max_in_cpu}
    return section


def _files(scenario: Scenario) -> dict[str, Any]:
    return {
        "nvme_path": scenario.nvme_path or tempfile.gettempdir(),
        "buffer_count": scenario.buffer_count,
        "buffer_size": scenario.buffer_size,
    }


def _optimizer_params(scenario: Scenario) -> dict[str, Any]:
    """The rule's parameters, and L2 for Adam, because DeepSpeed's Adam is AdamW by default."""
    l2 = {"adam_w_mode": False} if scenario.optimizer.name == "adam" else {}
    return hyperparameters(scenario.optimizer) | l2


def parameter_groups(model: nn.Module, scenario: Scenario) -> list[dict[str, Any]]:
    """The parameter groups that are not empty."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return [group for group in groups(scenario.optimizer, trained) if group["params"]]
