"""DeepSpeed, stages 0 to 3, through ``deepspeed.initialize``; the extra ``[deepspeed]`` installs it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from zerobench.extras import is_installed
from zerobench.oracles.optimizer import scheduler_of
from zerobench.oracles.rules import state_keys
from zerobench.scenario import Scenario
from zerobench.subject import Batch, Outcome, Policies, State, Subject
from zerobench.subjects import (
    client_settings,
    deepspeed_config,
    deepspeed_export,
    deepspeed_options,
    deepspeed_saving,
    plain_settings,
)
from zerobench.subjects.deepspeed_process import OwnProcess
from zerobench.subjects.plain import storages, tensors_of
from zerobench.subjects.reference import LOADS
from zerobench.workload.forwards import loss_of


class DeepSpeed(Subject):
    """DeepSpeed's engine with torch.optim's rules, in DeepSpeed's own flat partitions.

    It takes a process group, but sometimes waits for all processes: if the group is a part of the world, it hangs. So
    it is used without one, in a world of its own.

    It changes the state of the whole process, which is its own only while it computes
    (zerobench/subjects/deepspeed_process.py).
    """

    name = "deepspeed"
    distribution = "deepspeed"
    whole_world = True
    resumes = True
    loads_parts = True
    keeps_settings = False  # a load takes the saved ``clip_grad`` and loss scaler
    keeps_tags = True
    keeps_client_state = True
    schedules = True
    steps_scheduler = True
    calls_again = True
    shortens = True
    edits = True
    edits_gradients = True
    takes_rank_0 = True
    evaluates_in_inference_mode = False  # the finding deepspeed/inference-mode, which a setting draws
    settings = deepspeed_options.SETTINGS
    savings: ClassVar[tuple[str, ...]] = deepspeed_saving.SAVINGS
    #: The caller steps once after all micro-steps, and tells the engine the boundary; otherwise after each of them.
    steps_at_boundary: ClassVar[bool] = False
    #: On a CPU Adam is torch's; otherwise DeepSpeed's own, which is compiled.
    torch_adam: ClassVar[bool] = True
    #: Its optimizers read flat buffers, in which a parameter without a gradient has zeros, and the fp32 masters are
    #: copies of the model after its cast to 16 bits: https://deepspeed.readthedocs.io/en/latest/zero3.html and
    #: https://www.deepspeed.ai/docs/config-json/#bfloat16-training-options
    policies = Policies(inactive_gradient="zero", masters_from="rounded")

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if not is_installed("deepspeed"):
            return "DeepSpeed is not installed; pip install 'zerobench[deepspeed]'"
        return deepspeed_options.unsupported(scenario) or deepspeed_config.unsupported(scenario, cls.torch_adam)

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        self.model, self.scenario, self.group = model, scenario, group
        self.zero = _imported(scenario.device)
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.own = OwnProcess()
        self.micro_steps = 0  # since the last step
        self.boundary = scenario.accumulation  # the micro-step that ends the step
        self.accumulating = ExitStack()  # from a step's first micro-step to the last
        #: The updates that the engine counts before the optimizer has states; None if it had some before a load.
        self.not_updated: int | None = 0
        parameters = deepspeed_config.parameter_groups(scenario, self.trained, model)
        plain_settings.box(model, scenario)
        client_settings.change_blocks(model, scenario)
        with warnings.catch_warnings(action="ignore"), self._computing():
            deepspeed_options.prepare(self.zero, model, scenario, self._config())
            self.engine, self.optimizer, _, _ = self.zero.initialize(
                model=model,
                model_parameters=parameters,
                optimizer=self._client_optimizer(),
                lr_scheduler=scheduler_of(scenario),
                config=self._config(),
            )
        plain_settings.hook(self.trained.values(), scenario)
        plain_settings.unbox(self.engine, scenario)

    def _client_optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer that the client passes; None if the configuration names one."""
        return deepspeed_config.client_optimizer(self.scenario, self.trained, self.model)

    def _config(self) -> dict[str, Any]:
        """DeepSpeed's configuration."""
        return deepspeed_options.configured(deepspeed_config.config(self.scenario, self.torch_adam), self.scenario)

    def set_micro_steps(self, number: int) -> None:
        self.boundary = number
        deepspeed_options.set_micro_steps(self.engine, self.scenario, number)

    def micro_step(self, batch: Batch) -> Tensor:
        """Once the caller has told DeepSpeed a boundary, it has to tell all of them."""
        if not self.micro_steps:
            with self._computing():
                deepspeed_options.begin(self.engine, self.model, batch, self.scenario, self._backward)
        client_settings.before_micro_step(self.engine, self.model, batch, self.scenario)
        context, ends = deepspeed_options.context(self.engine, self.scenario, self.micro_steps, self.boundary)
        self.micro_steps += 1
        frozen = self.micro_steps == self.boundary and client_settings.FROZEN_LAST in self.scenario.settings
        if self._tells_boundary:
            self.engine.set_gradient_accumulation_boundary(self.micro_steps == self.boundary and not frozen)
        self.accumulating.enter_context(context)
        with self._computing(), plain_settings.mode(self.engine, self.scenario):
            loss = loss_of(self.scenario, self.engine, batch)
            plain_settings.after_forward(self.engine, self.engine, batch, self.scenario)
            self._backward(loss)
            if ends:
                self.accumulating.close()
            if frozen:
                deepspeed_options.go_back_frozen(self.engine, self.model, batch, self.scenario, last=True)
        if not self._steps_once and self.micro_steps < self.boundary:
            self.engine.step()
        return loss.detach()

    @contextmanager
    def _computing(
        self, surroundings: Callable[[Scenario], AbstractContextManager[None]] = client_settings.filled
    ) -> Iterator[None]:
        """Inside, the process is as it is for the client's code of this engine."""
        with self.own.in_place(), surroundings(self.scenario):
            yield

    @property
    def _tells_boundary(self) -> bool:
        """Whether the caller tells the engine which micro-step ends a step."""
        if self.steps_at_boundary or deepspeed_options.tells_boundaries(self.scenario):
            return True
        sets = deepspeed_options.BATCH_SIZE in self.scenario.settings
        return self.scenario.shortens and not self._steps_once and not sets

    def _backward(self, loss: Tensor) -> None:
        loss = plain_settings.before_hooks(client_settings.with_kept(loss, self.engine, self.scenario), self.scenario)
        if deepspeed_options.backward_of_loss(self.engine, self.scenario, loss):
            return
        divided = {"scale_wrt_gas": False} if deepspeed_options.DIVIDED in self.scenario.settings else {}
        self.engine.backward(loss / deepspeed_options.share(self.scenario, self.boundary), **divided)

    @property
    def _steps_once(self) -> bool:
        """Whether the caller steps after all micro-steps, and not after each of them."""
        return self.steps_at_boundary or deepspeed_options.accumulates_itself(self.scenario)

    def step(self) -> Outcome:
        skipped, scale = self.engine.skipped_steps, self._loss_scale()
        self.advance()
        norm = self.engine.get_global_grad_norm()
        return Outcome(None if norm is None else float(norm), self.engine.skipped_steps > skipped, scale)

    def advance(self) -> None:
        self.micro_steps = 0
        with self._computing(client_settings.in_step), client_settings.once(self.engine.basic_optimizer, self.scenario):
            self.engine.step()
        deepspeed_options.between_steps(self.engine, self.scenario)

    def _loss_scale(self) -> float:
        """The scale in force; ``engine.loss_scale()`` is the configured one, which is 0 if the scale is dynamic."""
        if self.scenario.dtype != "fp16":
            return 1.0
        kept = getattr(self.optimizer, "loss_scale_config", None)
        return float(self.optimizer.loss_scale if kept is None else kept.cur_scale)

    def param_groups(self) -> Sequence[dict[str, Any]]:
        return deepspeed_config.trained_groups(self.scenario, self.optimizer.param_groups)

    def evaluate(self, batch: Batch) -> Tensor:
        self.engine.eval()
        with torch.no_grad(), plain_settings.evaluating(self.scenario), self.own.in_place():
            loss: Tensor = self.engine(**batch)
        self.engine.train()
        return loss.clone()  # an ordinary tensor, also if the client's mode makes others

    def parameters(self) -> State:
        if not self.scenario.placement.optimizer:
            masters = self._masters()  # a parameter with no element has none
            return {name: masters.get(p, p).detach().float() for name, p in self.trained.items()}
        return self._read(self.zero.utils.safe_get_full_fp32_param)

    @torch.no_grad()
    def set_parameters(self, values: State) -> None:
        """Each parameter and its master: to set the master alone would reach the model after the next update
        (reports/findings/deepspeed/setter-before-forward)."""
        masters = {} if self.scenario.placement.optimizer else self._masters()
        with self._thawed():
            for name, value in values.items():
                self._set(self.trained[name], value, masters)

    def _set(self, p: nn.Parameter, value: Tensor, masters: Mapping[Tensor, Tensor]) -> None:
        with self.zero.zero.GatheredParameters([p], modifier_rank=0, enabled=self.scenario.placement.parameters):
            p.copy_(value)
        if self.scenario.placement.parameters:
            self.zero.utils.safe_set_local_fp32_param(p, self._shard(value))
        elif self.scenario.placement.optimizer and not _is_empty(p):
            self.zero.utils.safe_set_full_fp32_param(p, value)
        elif p in masters:
            masters[p].copy_(value)

    @contextmanager
    def _thawed(self) -> Iterator[None]:
        """Inside, every parameter requires a gradient: of a frozen one DeepSpeed reads and sets nothing at stage 3."""
        frozen = [p for p in self.trained.values() if not p.requires_grad]
        for p in frozen:
            p.requires_grad_(True)
        try:
            yield
        finally:
            for p in frozen:
                p.requires_grad_(False)

    def _shard(self, value: Tensor) -> Tensor:
        """This rank's part of a value at stage 3, padded with zeros: the setter of whole values raises if the ranks
        cannot share them evenly (reports/findings/deepspeed/padded-setter)."""
        padded = functional.pad(value.flatten(), (0, -value.numel() % self.scenario.world))
        return padded.chunk(self.scenario.world)[dist.get_rank()] if value.numel() else padded

    def _masters(self) -> dict[Tensor, Tensor]:
        """At stage 0 in 16 bits: the fp32 master of each parameter, which no public function of DeepSpeed reads."""
        pairs = zip(getattr(self.optimizer, "fp16_groups", ()), getattr(self.optimizer, "fp32_groups", ()), strict=True)
        return {p: master for whole, masters in pairs for p, master in zip(whole, masters, strict=True)}

    def gradients(self) -> State:
        scale = self._loss_scale()
        return {name: value / scale for name, value in self._read(self.zero.utils.safe_get_full_grad).items()}

    def zero_gradients(self, names: Collection[str]) -> None:
        utils, edited = self.zero.utils, [self.trained[name] for name in names]
        with self._thawed():
            if deepspeed_options.VECTORIZED in self.scenario.settings:
                some = [p for p in edited if not _is_empty(p) and utils.safe_get_full_grad(p) is not None]
                utils.safe_update_full_grad_vectorized(some, lambda gradient, _: torch.zeros_like(gradient))
                return
            for p in edited:
                if not _is_empty(p) and (gradient := utils.safe_get_full_grad(p)) is not None:
                    self._set_gradient(p, torch.zeros_like(gradient))

    def _set_gradient(self, p: nn.Parameter, value: Tensor) -> None:
        """At stage 3 this rank's part: the setter of whole values raises if the ranks cannot share them evenly, and
        leaves the norm as it was if the optimizer is offloaded (reports/findings/deepspeed/padded-setter and
        edited-gradient-offload)."""
        if self.scenario.placement.parameters:
            self.zero.utils.safe_set_local_grad(p, self._shard(value))
        else:
            self.zero.utils.safe_set_full_grad(p, value)

    def _read(self, get: Any, *key: str) -> State:
        with self._thawed():
            found = {name: p if _is_empty(p) else get(p, *key) for name, p in self.trained.items()}
        return {
            name: plain_settings.dense(value.detach().float()) for name, value in found.items() if value is not None
        }

    def model_parameters(self) -> State:
        if deepspeed_options.EXPORTED in self.scenario.settings:
            return deepspeed_export.exported(self.engine, self.scenario, self.group)
        whole = list(self.model.parameters()) if self.scenario.placement.parameters else []
        with self.zero.zero.GatheredParameters(whole, enabled=bool(whole)):
            return {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def optimizer_state(self) -> dict[str, State]:
        found: dict[str, State] = {name: {} for name in self.trained}
        for key in state_keys(self.scenario.optimizer):
            for name, value in self._states(key).items():
                found[name][key] = value
        return found

    def _states(self, key: str) -> State:
        if self.scenario.placement.optimizer:
            if self._has_no_states():
                return self._before_first_update()
            self._link_states()
            return self._read(self.zero.utils.safe_get_full_optimizer_state, key)
        states, masters = self.optimizer.state, self._masters()
        kept = {name: states.get(masters.get(p, p), {}) for name, p in self.trained.items()}
        return {name: kept[name].get(key, torch.zeros_like(p, dtype=torch.float32)) for name, p in self.trained.items()}

    def _has_no_states(self) -> bool:
        """Whether the optimizer has no states yet: the engine has neither updated nor loaded them."""
        return bool(self.engine.global_steps - self.engine.skipped_steps == self.not_updated)

    def _link_states(self) -> None:
        """Let the parameters find the states of every group: DeepSpeed links them once, after the update of the first
        group, and not after a load (reports/findings/deepspeed/second-group-state and state-before-first-update)."""
        if hasattr(self.optimizer, "_hp_optimizer_states_linked"):
            self.optimizer._hp_optimizer_states_linked = False
            self.optimizer._lazy_init_hp_params_optimizer_state()

    def _before_first_update(self) -> State:
        """torch's optimizers have no state yet; to read it raises (reports/findings/deepspeed)."""
        return {name: torch.zeros(getattr(p, "ds_shape", p.shape)) for name, p in self.trained.items()}

    def resident(self) -> dict[str, Sequence[Tensor]]:
        parameters = [getattr(p, "ds_tensor", p) for p in self.model.parameters()]
        whole = [p for p in self.model.parameters() if p.numel()]
        inner = getattr(self.optimizer, "optimizer", self.optimizer)
        sharded = self.scenario.placement.optimizer
        masters = [p for group in inner.param_groups for p in group["params"]] if sharded else []
        masters += getattr(self.optimizer, "fp32_partitioned_groups_flat", [])  # at stage 3 the groups are empty
        own = {tensor.untyped_storage().data_ptr() for tensor in (*parameters, *whole)}
        return {
            "parameters": storages([*parameters, *whole]),
            "gradients": storages(self._gradients()),
            "optimizer": storages([*(p for p in masters if p.untyped_storage().data_ptr() not in own),
                                   *tensors_of(inner.state)]),
        }  # fmt: skip

    def _gradients(self) -> list[Tensor]:
        """The gradients that the optimizer keeps from one micro-step to the next."""
        kept: list[Any] = [p.grad for p in self.trained.values()]
        for name in ("averaged_gradients", "all_grad_tensors"):
            kept += [
                tensor for of_group in (getattr(self.optimizer, name, None) or {}).values() for tensor in of_group or ()
            ]
        kept.append(getattr(self.optimizer, "grad_partitions_flat_buffer", None))
        return [tensor for tensor in kept if isinstance(tensor, Tensor)]

    def save(self, directory: Path) -> None:
        self._save(directory, self.client_state)

    def _save(self, directory: Path, client_state: Mapping[str, Any]) -> None:
        with warnings.catch_warnings(action="ignore"):
            own = deepspeed_saving.folder(self.scenario, directory, self.group)
            given = deepspeed_saving.save_arguments(self.scenario, own, self.engine.global_steps)
            self.engine.save_checkpoint(str(own), client_state=dict(client_state), **given | self._tagged())

    def _tagged(self) -> dict[str, str]:
        return {"tag": self.tag} if self.tag else {}

    def load(self, directory: Path) -> None:
        begins = self._has_no_states()
        with warnings.catch_warnings(action="ignore"), self.own.in_place():
            own = deepspeed_saving.folder(self.scenario, directory, self.group)
            given = LOADS[self.scenario.loads] | deepspeed_saving.load_arguments(self.scenario, own, self.tag)
            _, state = self.engine.load_checkpoint(str(own), **given | self._tagged())
        self.client_state = state or {}  # None if it has found no checkpoint
        if self.scenario.loads != "all":
            self.not_updated = self.engine.global_steps - self.engine.skipped_steps if begins else None

    def counters(self) -> Mapping[str, int]:
        """Those that its checkpoints have; the number of micro-steps is the engine's own, and begins at 0."""
        samples = [] if deepspeed_options.counts_otherwise(self.scenario) else ["global_samples"]
        return {name: getattr(self.engine, name) for name in ("global_steps", "skipped_steps", *samples)}

    def close(self) -> None:
        self.accumulating.pop_all()
        self.engine.destroy()


def _is_empty(parameter: nn.Parameter) -> bool:
    """Whether it has no element; DeepSpeed's reading functions return None then."""
    return not getattr(parameter, "ds_numel", parameter.numel())


def _imported(device: str) -> Any:
    """The package; its accelerator is set before it looks for one."""
    os.environ.setdefault("DS_ACCELERATOR", device)
    _tell_device(device)
    with warnings.catch_warnings(action="ignore"):
        import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # otherwise compiled here, used in inference only
    deepspeed.utils.logger.setLevel("WARNING")
    if device == "cpu":
        # A flag: it asks whether oneDNN has fp16 instructions, and torch computes without them, too.
        deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True
    return deepspeed


def _tell_device(device: str) -> None:
    """Set LOCAL_RANK to the number of this rank's GPU on its host: DeepSpeed reads it as that.

    If ranks share a GPU, its number is not the local rank. DeepSpeed requires Open MPI's variable to agree.
    """
    number = str(torch.cuda.current_device() if device == "cuda" else 0)
    os.environ["LOCAL_RANK"] = number
    if "OMPI_COMM_WORLD_LOCAL_RANK" in os.environ:
        os.environ["OMPI_COMM_WORLD_LOCAL_RANK"] = number
