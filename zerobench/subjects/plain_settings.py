"""The settings of torch's optimizers, norms and loss scalers that change no value; every wrapper of torch has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.model_specs import Gpt, Odd, Vit
from zerobench.oracles.rules import RULES
from zerobench.scenario import Scenario
from zerobench.subject import Batch
from zerobench.workload.forwards import loss_of

_ZERO_GRAD = "https://docs.pytorch.org/docs/2.13/generated/torch.optim.Optimizer.zero_grad.html"
_FORMS = "https://docs.pytorch.org/docs/2.13/optim.html#algorithms"
_EMBEDDING = "https://docs.pytorch.org/docs/2.13/generated/torch.nn.Embedding.html"
_SPARSE = "https://docs.pytorch.org/docs/2.13/sparse.html#supported-operations"
_AMP = "https://docs.pytorch.org/docs/2.13/amp.html#gradient-scaling"

ZEROS = "zero_grad(set_to_none=False)"
LOOP, LISTS, FUSED = "optimizer(foreach=False)", "optimizer(foreach=True)", "optimizer(fused=True)"
#: Forms of torch's optimizers; a Scenario has one of them.
FORMS = LOOP, LISTS, FUSED
SCALER, STEP_ALONE = "GradScaler", "GradScaler.step without unscale_"
#: Loops with a scaler; a Scenario has one of them.
SCALERS = SCALER, STEP_ALONE
TOTAL = "get_total_norm and clip_grads_with_norm_"
NORM_LOOP = "clip_grad_norm_(foreach=False)"
#: The optimizer's step calls a closure, which returns the loss of the micro-steps that the client has run before.
CLOSURE = "step(closure)"
#: The client drops the last step's gradients between a step's first forward and its backward, as many loops do.
LATE_ZERO = "zero_grad() after the forward"
#: Before a step's first micro-step the client drops the gradients of another one, whose batch it leaves out.
DROPPED = "zero_grad() after a micro-step"
#: Hooks of the client double the gradient of each trained parameter, and the client halves the loss that it goes back
#: from: https://docs.pytorch.org/docs/2.13/generated/torch.Tensor.register_hook.html
HOOKED = "Tensor.register_hook"
#: The same by hooks that run after the gradient is in ``grad``, which has those of earlier backwards too. An engine
#: that sets such a hook itself takes the gradient before a client's, which comes later:
#: https://docs.pytorch.org/docs/2.13/generated/torch.Tensor.register_post_accumulate_grad_hook.html
HOOKED_AFTER = "Tensor.register_post_accumulate_grad_hook"
#: Hooks on parameters that double their gradients.
HOOKS = HOOKED, HOOKED_AFTER
#: Before each micro-step a forward raises in a part of the model, on all ranks, as if memory had run out. The client
#: leaves the batch out.
FAILED = "a forward that raises"
#: It raises before the client drops the last step's gradients alone, as in a loop that does so for each batch.
FAILED_BEFORE = "zero_grad() after a forward that raises"
#: The client evaluates before a step, and drops the last step's gradients afterwards alone.
EVALUATED_BEFORE = "zero_grad() after an evaluation"
#: Evaluations in torch's inference mode.
INFERENCE = "torch.inference_mode()"
#: Before a step a forward with gradients, which no backward follows, as the client leaves a batch out when it has seen
#: the loss. It drops the last step's gradients afterwards alone.
FORWARD_BEFORE = "zero_grad() after a forward alone"
#: Between the forward and the backward of each micro-step the client evaluates, in evaluation mode.
EVALUATED = "an evaluation after the forward"
#: The module is in evaluation mode in each micro-step, as a client trains that keeps the statistics of norms:
#: https://docs.pytorch.org/docs/2.13/notes/autograd.html#evaluation-mode-nn-module-eval
IN_EVALUATION = "training in eval()"
#: The client's model returns its loss in a dataclass, from which the client takes it.
BOXED = "an output in a dataclass"
#: Of an optimizer that shares its parameters out: it gets all groups but the first by add_param_group; in the second
#: form while their parameters are frozen.
ADDED, ADDED_FROZEN = "add_param_group", "add_param_group of frozen parameters"
ADDITIONS = ADDED, ADDED_FROZEN
#: Of a language model: the gradients of its embeddings have the rows of the tokens of a leaf alone.
SPARSE = "Embedding(sparse=True)"
#: Moments at which the client drops gradients; by the module, beside the usual one before each step.
MOMENTS = LATE_ZERO, DROPPED, FAILED_BEFORE, EVALUATED_BEFORE, FORWARD_BEFORE
#: Code of the client that every engine can run.
CODE = HOOKED, FAILED, EVALUATED, IN_EVALUATION, BOXED
SETTINGS = ZEROS, *FORMS, *SCALERS, TOTAL, NORM_LOOP, CLOSURE, *MOMENTS, *CODE, HOOKED_AFTER


def unsupported(scenario: Scenario) -> str | None:
    """The reason of a setting's documentation against the Scenario, or None."""
    if ZEROS in scenario.settings and scenario.leaves_some_out:
        return f"{ZEROS} gives a parameter that a step does not use a gradient of zeros: {_ZERO_GRAD}"
    scalers = set(SCALERS).intersection(scenario.settings)
    if scalers and scenario.dtype != "fp16":
        return f"{min(scalers)} is for fp16: {_AMP}"
    if len(scalers) > 1:
        return "a client has one scaler"
    if STEP_ALONE in scalers and scenario.clip:
        return f"gradients are clipped after unscale_: {_AMP}"
    if CLOSURE in scenario.settings and scalers:
        return f"a GradScaler takes no closure: {_AMP}"
    if CLOSURE in scenario.settings and not RULES[scenario.optimizer.name].flags:
        return f"{CLOSURE} is of torch's optimizers: {_FORMS}"
    if (reason := unsupported_form(scenario) or unsupported_drop(scenario) or unsupported_code(scenario)) is not None:
        return reason
    if (additions := set(ADDITIONS).intersection(scenario.settings)) and not (
        scenario.optimizer.second_group or scenario.optimizer.third_group
    ):
        return f"{min(additions)} is of a second group"
    if len(additions) > 1:
        return "a group is added once"
    norm = {TOTAL, NORM_LOOP}.intersection(scenario.settings)
    if norm and not scenario.clip:
        return f"{min(norm)} is for a step that clips"
    if len(norm) > 1:
        return "a step clips in one way"
    return None


def unsupported_form(scenario: Scenario) -> str | None:
    """The reason against the form of torch's optimizer that a Scenario's settings name, or None."""
    forms, rule = set(FORMS).intersection(scenario.settings), RULES[scenario.optimizer.name]
    if len(forms) > 1:
        return "an optimizer has one form"
    if forms and not rule.flags:
        return f"{min(forms)} is of torch's optimizers: {_FORMS}"
    if FUSED in forms and scenario.device == "cuda" and not rule.fuses:
        return f"{FUSED} of {scenario.optimizer.name} is for the CPU: {_FORMS}"
    return None


def unsupported_code(scenario: Scenario) -> str | None:
    """The reason against hooks that double gradients, a forward of no use, or training in evaluation mode, or None."""
    if (hooks := set(HOOKS).intersection(scenario.settings)) and scenario.dtype == "fp16":
        return f"with {min(hooks)} the client halves the loss, so that small gradients lose bits in fp16"
    if HOOKED_AFTER in scenario.settings and (scenario.accumulation > 1 or scenario.model.recompute == "reentrant"):
        return f"with several backwards {HOOKED_AFTER} would double the sum of their gradients each time"
    if {FAILED, FAILED_BEFORE, FORWARD_BEFORE}.intersection(scenario.settings):
        return unsupported_repetition(scenario)
    if IN_EVALUATION in scenario.settings and trains_otherwise(scenario.model):
        return "in evaluation mode the model has no dropout, and does not change its buffers"
    return None


def hook(parameters: Iterable[Tensor], scenario: Scenario) -> None:
    """Set the client's hooks that double gradients, if a setting says so."""
    for parameter in parameters:
        if HOOKED in scenario.settings:
            parameter.register_hook(lambda gradient: gradient * 2.0)  # type: ignore[no-untyped-call]
        if HOOKED_AFTER in scenario.settings:
            parameter.register_post_accumulate_grad_hook(_double)  # type: ignore[no-untyped-call]


def _double(parameter: Tensor) -> None:
    if parameter.grad is not None:
        parameter.grad.mul_(2.0)


@dataclass
class _Output:
    """A model's output."""

    loss: Tensor


def box(model: nn.Module, scenario: Scenario) -> None:
    """Let the model that an engine will wrap return its loss in a dataclass, if a setting says so."""
    if BOXED in scenario.settings:
        model.register_forward_hook(_box)


def unbox(module: nn.Module, scenario: Scenario) -> None:
    """Let the client take the loss from what the wrapped module returns."""
    if BOXED in scenario.settings:
        module.register_forward_hook(_unbox)


def _box(module: nn.Module, given: Any, loss: Tensor) -> _Output:
    return _Output(loss)


def _unbox(module: nn.Module, given: Any, output: _Output) -> Tensor:
    return output.loss


def before_hooks(loss: Tensor, scenario: Scenario) -> Tensor:
    """The loss that the client goes back from: a half of it for each of the hooks that double the gradients."""
    hooks = set(HOOKS).intersection(scenario.settings)
    return loss * 0.5 ** len(hooks) if hooks else loss


def unsupported_drop(scenario: Scenario) -> str | None:
    """The reason against a micro-step whose gradients the client drops, or None."""
    if DROPPED not in scenario.settings:
        return None
    if scenario.accumulation == 1 or scenario.reduction != "boundary":
        return f"{DROPPED} is for several micro-steps that one reduction follows"
    return unsupported_repetition(scenario)


class _ForwardError(Exception):
    """Raised within a forward."""


def fail(call: Callable[..., Any], model: nn.Module, batch: Batch, scenario: Scenario) -> None:
    """Call the client's module for a batch that it leaves out, as a part of the model raises: another one in each
    Scenario, by the seed. Not every leaf uses the last block, and the ranks raise alike."""
    parts = [*list(model.get_submodule("blocks").children())[:-1], model]
    hook = parts[scenario.seed % len(parts)].register_forward_hook(_raise)
    with suppress(_ForwardError):
        loss_of(scenario, call, batch)
    hook.remove()


def _raise(*given: object) -> None:
    raise _ForwardError


def before_micro_step(call: Callable[..., Any], model: nn.Module, batch: Batch, scenario: Scenario) -> None:
    """Make a forward that raises, if a setting says so."""
    if FAILED in scenario.settings:
        fail(call, model, batch, scenario)


def after_forward(module: nn.Module, call: Callable[..., Any], batch: Batch, scenario: Scenario) -> None:
    """Evaluate before the backward, if a setting says so."""
    if EVALUATED in scenario.settings:
        evaluate(module, call, batch, scenario)


@contextmanager
def mode(module: nn.Module, scenario: Scenario) -> Iterator[None]:
    """The mode of the client's module in a micro-step."""
    with _evaluating(module) if IN_EVALUATION in scenario.settings else nullcontext():
        yield


def evaluating(scenario: Scenario) -> AbstractContextManager[object]:
    """The client's mode in an evaluation, beside no_grad()."""
    return torch.inference_mode() if INFERENCE in scenario.settings else nullcontext()


def evaluate(module: nn.Module, call: Callable[..., Any], batch: Batch, scenario: Scenario) -> None:
    """Evaluate a batch, for a number that the client logs."""
    with _evaluating(module), torch.no_grad():
        loss_of(scenario, call, batch)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Inside, the module is in evaluation mode; afterwards each of its modules is in the mode that it had."""
    trains, modes = module.training, {each: each.training for each in module.modules()}
    module.eval()
    yield
    module.train(trains)
    for each, mode in modes.items():
        each.training = mode


def unsupported_repetition(scenario: Scenario) -> str | None:
    """The reason against a forward beside those of the Scenario, or None."""
    if trains_otherwise(scenario.model):
        return "a forward that the client drops changes buffers, and takes random numbers"
    return None


def trains_otherwise(model: Gpt | Vit | Odd) -> bool:
    """Whether a forward in training mode changes the model, or takes random numbers."""
    return model.dropout > 0 or (isinstance(model, Odd) and model.buffers)


def unsupported_sparse(scenario: Scenario) -> str | None:
    """The reason against sparse gradients in a Scenario that has them, or None."""
    model, rule = scenario.model, scenario.optimizer
    if SPARSE not in scenario.settings:
        return None
    if not isinstance(model, Gpt) or model.tied:
        return f"{SPARSE} is of a language model whose embeddings have weights of their own"
    if rule.name != "sgd" or rule.weight_decay or rule.momentum or FUSED in scenario.settings:
        return f"only some of torch's optimizers take sparse gradients, such as SGD without decay: {_EMBEDDING}"
    if scenario.dtype == "fp16":
        return f"torch does not add sparse gradients in fp16 on a CPU: {_SPARSE}"
    if scenario.gradient_edits:
        return f"the client's zeros of a gradient are no sparse tensor: {_EMBEDDING}"
    return None


def unsupported_sparse_norm(scenario: Scenario) -> str | None:
    """The reason against a norm of sparse gradients by torch, or None."""
    if SPARSE in scenario.settings and scenario.clip:
        return f"torch has no norm of sparse gradients that share rows: {_SPARSE}"
    return None


def make_sparse(model: nn.Module, scenario: Scenario) -> None:
    """Let the gradients of the model's embeddings be sparse, if the Scenario says so."""
    for each in model.modules() if SPARSE in scenario.settings else ():
        if isinstance(each, nn.Embedding):
            each.sparse = True


def dense(gradient: Tensor) -> Tensor:
    """The gradient as a tensor with all of its elements."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def form(scenario: Scenario) -> dict[str, bool]:
    """The arguments of torch's optimizer that choose its form; without them torch does."""
    chosen: dict[str, dict[str, bool]] = {
        LOOP: {"foreach": False},
        LISTS: {"foreach": True},
        FUSED: {"fused": True},
    }
    return next((chosen[name] for name in scenario.settings if name in chosen), {})


def step(optimizer: torch.optim.Optimizer, scenario: Scenario) -> None:
    """Step the optimizer; with a closure, it returns what the closure does, here a loss of 1.

    Raises:
        RuntimeError: it returns something else.
    """
    if CLOSURE not in scenario.settings:
        optimizer.step()
    elif (found := optimizer.step(lambda: 1.0)) != 1.0:
        raise RuntimeError(f"the optimizer's step returned {found} in place of the closure's loss, 1.0")


def first_groups(grouped: list[dict[str, Any]], scenario: Scenario) -> list[dict[str, Any]]:
    """The parameter groups with which the optimizer is built; :func:`add_groups` adds the others."""
    return grouped[:1] if set(ADDITIONS).intersection(scenario.settings) else grouped


def add_groups(optimizer: torch.optim.Optimizer, grouped: list[dict[str, Any]], scenario: Scenario) -> None:
    """Add the groups that are left; their parameters may be frozen while that is done."""
    for group in grouped[len(first_groups(grouped, scenario)) :]:
        for p in group["params"]:
            p.requires_grad_(ADDED_FROZEN not in scenario.settings)
        optimizer.add_param_group(group)
        for p in group["params"]:
            p.requires_grad_(True)


def clip(parameters: Any, scenario: Scenario) -> Tensor:
    """Clip the gradients by their norm, which it returns."""
    limit, norm_type = scenario.clip or math.inf, float(scenario.norm_type)
    given, utils = list(parameters), torch.nn.utils
    if TOTAL in scenario.settings:
        norm = utils.get_total_norm([p.grad for p in given if p.grad is not None], norm_type)
        utils.clip_grads_with_norm_(given, limit, norm)
        return norm
    loop = False if NORM_LOOP in scenario.settings else None
    return utils.clip_grad_norm_(given, limit, norm_type, foreach=loop)


class OptimizerScaler:
    """torch's GradScaler for an optimizer; it tells whether it left the step out. A static scale stays."""

    def __init__(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, static: float) -> None:
        self.scaler, self.optimizer, self._static = scaler, optimizer, static

    @property
    def scale(self) -> float:
        """The scale of the next step's loss."""
        return float(self.scaler.get_scale())

    def step(self) -> bool:
        """Step the optimizer, unless a gradient is not finite; returns whether it was left out.

        A fused optimizer is called in any case, and leaves the step out itself; a scale that falls tells of both.
        """
        before = self.scale
        self.scaler.step(self.optimizer)
        self.scaler.update()
        left_out = self.scale < before
        if self._static:
            self.scaler.update(self._static)
        return left_out


def scaler(
    scenario: Scenario, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup, *, sharded: bool
) -> OptimizerScaler | None:
    """The scaler of a Scenario; None if it has none. FSDP1 has its own, as its ranks have other gradients."""
    if not scenario.scales_dynamically and not set(SCALERS).intersection(scenario.settings):
        return None
    return grad_scaler(scenario, optimizer, group, sharded=sharded)


def grad_scaler(
    scenario: Scenario, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup, *, sharded: bool
) -> OptimizerScaler:
    """A scaler of the Scenario's loss scale."""
    spec = scenario.loss_scale
    options: dict[str, Any] = {"init_scale": spec.static or 2.0**spec.initial_power, "growth_interval": spec.window}
    if sharded:
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        own: Any = ShardedGradScaler(device=scenario.device, process_group=group, **options)
    else:
        own = torch.amp.GradScaler(scenario.device, **options)
    return OptimizerScaler(own, optimizer, spec.static)
