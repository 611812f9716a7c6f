"""A model and torch.optim in one process: the compute-only step, and the base of torch's own subjects."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.oracles.optimizer import build_optimizer, groups, make_optimizer, read_state
from zerobench.oracles.rules import RULES
from zerobench.scenario import NormType, Scaler, Scenario
from zerobench.subject import Batch, Outcome, Policies, State, Subject, Theory
from zerobench.subjects import client_settings, group_settings, plain_settings
from zerobench.subjects.saving import load_scaler, save_scaler
from zerobench.theory import peers
from zerobench.workload.data import DTYPES, held_out
from zerobench.workload.forwards import loss_of

_AMP = "https://docs.pytorch.org/docs/2.13/amp.html#gradient-scaling"


class Plain(Subject):
    """Usual mixed-precision training in torch, with hooks for a wrapper.

    In bf16 and fp16 the model is cast and has fp32 masters; gradients accumulate in the model's dtype. fp16 takes a
    static loss scale and skips a step if its norm is not finite. Gradients are freed at the next step's start, so that
    between steps :meth:`resident` shows them.
    """

    #: torch.optim leaves a parameter alone if its gradient is None; the masters are copied before the cast:
    #: https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
    policies = Policies(inactive_gradient="none", masters_from="original")
    schedules = True
    calls_again = True
    shortens = True
    edits = True
    edits_gradients = True
    scalers: ClassVar[tuple[Scaler, ...]] = ("torch",)
    norm_types: ClassVar[tuple[NormType, ...]] = ("2", "1", "inf")
    #: The offered stages; all if empty.
    stages: ClassVar[tuple[int, ...]] = ()
    #: Shards over groups of ranks that each hold all states, as a Scenario's mesh says.
    hybrid: ClassVar[bool] = False
    #: Keeps all states in host memory, and moves parameters to the device as they are used; otherwise none.
    offloads: ClassVar[bool] = False
    #: A reduction leaves gradients that were reduced before alone; otherwise it reduces them again.
    adds_reduced: ClassVar[bool] = False
    #: Needs a scaler that lets the ranks agree on an overflow; otherwise torch's own is enough.
    scales_shards: ClassVar[bool] = False

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if cls.stages and scenario.stage not in cls.stages:
            return f"{cls.name} is stage {' or '.join(map(str, cls.stages))}, not {scenario.stage}"
        if scenario.replicate > 1 and not cls.hybrid:
            return f"{cls.name} has no hybrid sharding"
        if (reason := cls._unsupported_place(scenario)) is not None:
            return reason
        if scenario.poison and scenario.dtype != "fp16":
            return f"torch checks for overflow in fp16 only: {_AMP}"
        reason = plain_settings.unsupported(scenario) or client_settings.unsupported(scenario)
        return reason or group_settings.unsupported(scenario)

    @classmethod
    def _unsupported_place(cls, scenario: Scenario) -> str | None:
        place, words = ("cpu", "in host memory") if cls.offloads else ("none", "on the device")
        parameters = place if scenario.placement.parameters else "none"
        if (scenario.optimizer_at, scenario.parameters_at) != (place, parameters):
            return f"{cls.name} keeps all states {words}"
        return None

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        self.model, self.scenario, self.group = model, scenario, group
        self.masters = self._take_masters()
        plain_settings.box(model, scenario)
        client_settings.change_blocks(model, scenario)
        with client_settings.filled(scenario):
            self.module = self._wrap()
        plain_settings.unbox(self.module, scenario)
        self.working = {name: p for name, p in model.named_parameters() if p.requires_grad}
        plain_settings.hook(self.working.values(), scenario)
        self.masters = self.masters or self.working
        late = client_settings.LATE_OPTIMIZER in scenario.settings
        self.optimizer = self._late_optimizer() if late else self._optimizer()
        self.scaler = plain_settings.scaler(scenario, self.optimizer, group, sharded=self.scales_shards)
        self.scale = self._next_scale()
        self.micro_steps = 0  # since the last step
        self.boundary = scenario.accumulation  # the micro-step that ends the step

    def _take_masters(self) -> dict[str, nn.Parameter]:
        """Cast the model to the Scenario's dtype and return fp32 copies of its trained parameters; nothing in fp32."""
        if self.scenario.dtype == "fp32":
            return {}
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        masters = {name: nn.Parameter(p.detach().clone()) for name, p in named.items()}
        for p in self.model.parameters():
            p.data = p.data.to(DTYPES[self.scenario.dtype])
        return masters

    def _wrap(self) -> nn.Module:
        """The module that :meth:`micro_step` calls instead of the model."""
        return self.model

    def _optimizer(self) -> torch.optim.Optimizer:
        return self._of_groups(groups(self.scenario.optimizer, self.masters))

    def _of_groups(self, grouped: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """The optimizer of these parameter groups, and of those that a setting adds, in the form that it asks for."""
        given = group_settings.with_others(grouped, self.model, self.scenario)
        return make_optimizer(self.scenario.optimizer, given, **plain_settings.form(self.scenario))

    def _late_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer after an evaluation, of the parameters that the module has then."""
        plain_settings.evaluate(self.module, self._called, held_out(self.scenario), self.scenario)
        kept = self.masters
        if kept is self.working:
            self.masters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        made, self.masters = self._optimizer(), kept
        return made

    def _synchronizing(self, needed: bool) -> AbstractContextManager[None]:
        """The context of a forward and backward; gradients need to be reduced only if ``needed``."""
        return nullcontext()

    def _zero_grad(self) -> None:
        """Drop the last step's gradients."""
        self.model.zero_grad(set_to_none=plain_settings.ZEROS not in self.scenario.settings)

    def _full(self, tensor: Tensor) -> Tensor:
        """The whole tensor; this rank may hold only a shard of it."""
        return tensor.detach()

    def set_micro_steps(self, number: int) -> None:
        self.boundary = number

    def micro_step(self, batch: Batch) -> Tensor:
        with client_settings.filled(self.scenario):
            first = self.micro_steps == 0
            if first:
                self._begin(batch)
            client_settings.before_micro_step(self._called, self.model, batch, self.scenario)
            self.micro_steps += 1
            ends = self.micro_steps == self.boundary
            frozen = ends and client_settings.FROZEN_LAST in self.scenario.settings
            reduces = ends or self.scenario.reduction == "micro_step"
            zeroes = first and plain_settings.LATE_ZERO in self.scenario.settings
            loss = self._run(batch, reduces=reduces and (not frozen or self._adds_each), zeroes=zeroes)
            if frozen:
                self._run_frozen(batch, reduces=True)
        return loss

    def _begin(self, batch: Batch) -> None:
        """Begin a step: what the client does before it drops the last step's gradients, and that."""
        settings, self.scale = self.scenario.settings, self._next_scale()
        if plain_settings.DROPPED in settings:
            self._zero_grad()
            self._run(batch, reduces=False)
        if plain_settings.FAILED_BEFORE in settings:
            plain_settings.fail(self._called, self.model, batch, self.scenario)
        if plain_settings.EVALUATED_BEFORE in settings:
            plain_settings.evaluate(self.module, self._called, batch, self.scenario)
        if plain_settings.FORWARD_BEFORE in settings:
            loss_of(self.scenario, self._called, batch)
        if plain_settings.LATE_ZERO not in settings:
            self._zero_grad()
        client_settings.cast_and_back(self.module, self.scenario)
        if client_settings.FROZEN_FIRST in settings:
            self._run_frozen(batch, reduces=self._adds_each)

    def _run(self, batch: Batch, *, reduces: bool, zeroes: bool = False) -> Tensor:
        """The loss of a forward and its backward, between which earlier gradients may be dropped."""
        with plain_settings.mode(self.module, self.scenario), self._synchronizing(reduces):
            loss = loss_of(self.scenario, self._called, batch)
            loss = client_settings.with_kept(loss, self.module, self.scenario)
            if zeroes:
                self._zero_grad()
            plain_settings.after_forward(self.module, self._called, batch, self.scenario)
            self._go_back(plain_settings.before_hooks(self._scaled(loss), self.scenario))
        return loss.detach()

    def _run_frozen(self, batch: Batch, *, reduces: bool) -> None:
        """Go back from zero times the loss while the first block is frozen."""
        with (
            client_settings.frozen_block(self.model),
            plain_settings.mode(self.module, self.scenario),
            self._synchronizing(reduces),
        ):
            self._go_back(client_settings.zero_loss(self._called, batch, self.scenario))

    def _go_back(self, loss: Tensor) -> None:
        named = client_settings.inputs(self.working.values(), self.scenario)
        loss.backward(inputs=named)  # type: ignore[no-untyped-call]

    @property
    def _adds_each(self) -> bool:
        """Whether each backward's gradients are reduced and added to those that were reduced before."""
        return self.adds_reduced and self.scenario.reduction == "micro_step"

    @property
    def _called(self) -> Callable[..., Any]:
        """The function that the client calls for a loss."""
        return self.module

    def _next_scale(self) -> float:
        """The loss scale of a step that begins; the gradients keep it until then."""
        if self.scaler is not None:
            return self.scaler.scale
        return self.scenario.loss_scale.static if self.scenario.dtype == "fp16" else 1.0

    def _scaled(self, loss: Tensor) -> Tensor:
        if self.scaler is not None:
            found: Tensor = self.scaler.scaler.scale(loss / self.scenario.accumulation)
            return found
        return loss * (self.scale / self.scenario.accumulation)

    def step(self) -> Outcome:
        norm, skipped = self._update()
        return Outcome(None if norm is None else float(norm), skipped, self.scale)

    def advance(self) -> None:
        self._update()

    @torch.no_grad()
    def _update(self) -> tuple[Tensor | None, bool]:
        """Clip and step; the norm, and whether the step was skipped, which in fp16 the host has to know."""
        self.micro_steps = 0
        with client_settings.in_step(self.scenario), client_settings.once(self.optimizer, self.scenario):
            self._unscale()
            norm = self._norm()
            skipped = self._step(norm)
            if self.masters is not self.working:
                self._publish()
        return norm, skipped

    def _step(self, norm: Tensor | None) -> bool:
        """Step the optimizer or leave it out, which it returns."""
        if self.scaler is not None:
            skipped: bool = self.scaler.step()
            return skipped
        if self.scenario.dtype == "fp16" and norm is not None and not math.isfinite(norm):
            return True
        plain_settings.step(self.optimizer, self.scenario)
        return False

    def _give_gradients(self) -> None:
        """Give the masters, if they are not the working parameters, their gradients in fp32."""
        for name, p in self.working.items():
            if self.masters is not self.working:
                self.masters[name].grad = None if p.grad is None else p.grad.float()

    def _unscale(self) -> None:
        """Give the masters their gradients in fp32, the loss scale divided out."""
        self._give_gradients()
        if self.scaler is not None:
            if not self._steps_scaled:
                self.scaler.scaler.unscale_(self.optimizer)
            return
        for name in self.working:
            if self.scale != 1.0 and (grad := self.masters[name].grad) is not None:
                grad.mul_(1.0 / self.scale)

    @property
    def _steps_scaled(self) -> bool:
        """Whether the scaler's step gets the gradients as they are."""
        return plain_settings.STEP_ALONE in self.scenario.settings

    def _norm(self) -> Tensor | None:
        """The norm of the unscaled gradients; they are clipped, if the Scenario clips."""
        norm = self._clip()
        return norm / self.scale if norm is not None and self._steps_scaled else norm

    def _clip(self) -> Tensor | None:
        """Clip if the Scenario does; returns the norm (always needed in fp16) or None."""
        if not self.scenario.clip and self.scenario.dtype != "fp16":
            return None
        return self._full(plain_settings.clip(self.masters.values(), self.scenario))

    def _publish(self) -> None:
        for name, master in self.masters.items():
            self.working[name].copy_(master)
            master.grad = None

    def param_groups(self) -> Sequence[dict[str, Any]]:
        return group_settings.trained(self.optimizer.param_groups, self.scenario)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor:
        with plain_settings.evaluating(self.scenario):
            self.module.eval()
            loss: Tensor = self.module(**batch)
            self.module.train()
        return loss.clone()  # an ordinary tensor, also if the client's mode makes others

    @torch.no_grad()
    def set_parameters(self, values: State) -> None:
        for name, value in values.items():
            self._set(self.masters[name], value)
            if self.masters is not self.working:
                self.working[name].copy_(value)

    def _set(self, parameter: Tensor, value: Tensor) -> None:
        """Give a parameter the whole value; this rank may hold only a shard of it."""
        parameter.copy_(value)

    def zero_gradients(self, names: Collection[str]) -> None:
        for name in names:
            if (grad := self.working[name].grad) is not None:
                grad.zero_()

    def _save_scale(self, directory: Path) -> None:
        """Save a loss scale that moves, as the client does. A collective."""
        if (moving := self._moving_scaler) is not None:
            save_scaler(moving.scaler, directory, self.group)

    def _load_scale(self, directory: Path) -> None:
        """Load it, if the Scenario loads the whole state."""
        if (moving := self._moving_scaler) is not None and self.scenario.loads == "all":
            load_scaler(moving.scaler, directory)

    @property
    def _moving_scaler(self) -> plain_settings.OptimizerScaler | None:
        """The scaler, if its scale moves."""
        return self.scaler if self.scenario.scales_dynamically else None

    def parameters(self) -> State:
        return {name: self._full(p) for name, p in self.masters.items()}

    def model_parameters(self) -> State:
        dtype = DTYPES[self.scenario.dtype]
        return {name: self._full(p).to(dtype) for name, p in self.model.named_parameters()}

    def gradients(self) -> State:
        gradients = {name: p.grad for name, p in self.working.items() if p.grad is not None}
        return {name: self._full(plain_settings.dense(grad.float())) / self.scale for name, grad in gradients.items()}

    def optimizer_state(self) -> dict[str, State]:
        states = read_state(self.scenario.optimizer, self.optimizer.state, self.masters)
        return {name: {key: self._full(t) for key, t in state.items()} for name, state in states.items()}

    def resident(self) -> dict[str, Sequence[Tensor]]:
        masters = self.masters.values() if self.masters is not self.working else ()
        return {
            "parameters": storages(self.model.parameters()),
            "gradients": storages(p.grad for p in self.working.values() if p.grad is not None),
            "optimizer": storages([*masters, *tensors_of(self.optimizer.state)]),
        }


class ComputeOnly(Plain):
    """Each rank trains on its own leaves and sends nothing: a lower bound for the time of every engine."""

    name = "compute-only"

    def _optimizer(self) -> torch.optim.Optimizer:
        """On CUDA the fused one: the others move twice the bytes, and would be no lower bound."""
        spec = self.scenario.optimizer
        return build_optimizer(spec, self.masters, fused=self.scenario.device == "cuda" and RULES[spec.name].fuses)

    @classmethod
    def theory(cls) -> Theory:
        return peers.Silent()


def tensors_of(state: Mapping[Tensor, Mapping[str, object] | None]) -> list[Tensor]:
    """The tensors in the ``state`` of an optimizer of torch, step counts included.

    After a load ZeroRedundancyOptimizer has None for the parameters of other ranks.
    """
    return [value for values in state.values() for value in (values or {}).values() if isinstance(value, Tensor)]


def summed(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum over the ranks, as a copy: one rank's value, if the others have zeros."""
    whole = tensor.detach().clone(memory_format=torch.contiguous_format)  # another rank's strides may differ
    dist.all_reduce(whole, group=group)
    return whole


def storages(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Each storage behind ``tensors`` once, as a flat tensor over all of its bytes."""
    whole: dict[int, Tensor] = {}
    parts = ((each._indices(), each._values()) if each.is_sparse else (each,) for each in tensors)
    for tensor in itertools.chain.from_iterable(parts):
        storage = tensor.detach().untyped_storage()
        if storage.nbytes():
            whole.setdefault(storage.data_ptr(), tensor.detach().new_empty(0).set_(storage))
    return list(whole.values())
