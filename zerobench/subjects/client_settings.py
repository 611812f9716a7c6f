"""The settings of a client's code that most engines have, and that change no value: backwards while a block is frozen
or of named parameters, a block's own loss, a late optimizer, a cast of the module, and what a process sets for all of
torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from zerobench.model_specs import Gpt, Odd
from zerobench.scenario import Scenario
from zerobench.subject import Batch
from zerobench.subjects import plain_settings
from zerobench.workload.changes import first_block, trained
from zerobench.workload.forwards import loss_of
from zerobench.workload.models.odd_blocks import hidden_of

#: A step has one more backward, of zero times the loss, while the first block is frozen: before the others, or after
#: them. So a client trains a generator and a discriminator in one module, each while the other one is frozen.
FROZEN_FIRST, FROZEN_LAST = "a frozen block in the first backward", "a frozen block in the last backward"
FROZEN = FROZEN_FIRST, FROZEN_LAST
#: Before each step the module goes to fp64 and back, as one does that leaves the device for a while and comes back.
CAST = "double() and float()"
#: New memory is NaN: https://docs.pytorch.org/docs/2.13/deterministic.html#torch.utils.deterministic.fill_uninitialized_memory
FILLED = "use_deterministic_algorithms"
#: In a step the dtype of new tensors is bf16, as a client sets it that builds its model in 16 bits.
SIXTEEN = "set_default_dtype(bfloat16) in the step"
#: Each block recomputes itself, in place of the model that calls it, as one does that has a checkpointed layer.
WITHIN = "checkpoint within a block"
#: The head recomputes itself too, so that a backward's first gradients are those of a recomputation.
HEAD = "checkpoint of the head"
#: A recomputation runs to its end, also after the last tensor that the backward needs:
#: https://docs.pytorch.org/docs/2.13/checkpoint.html#torch.utils.checkpoint.set_checkpoint_early_stop
TO_THE_END = "set_checkpoint_early_stop(False)"
#: The first block computes a loss of its own after its output, and keeps it in an attribute. The client takes it from
#: there, and adds zero times it, as one trains a model with auxiliary heads whose losses have a weight.
KEPT = "a loss in an attribute of a block"
#: Code that every engine can run.
CODE = *FROZEN, FILLED, SIXTEEN, WITHIN, HEAD, TO_THE_END, KEPT
#: Before each micro-step the client takes the gradient of its loss by the inputs, as one does that moves these in
#: adversarial training: https://docs.pytorch.org/docs/2.13/generated/torch.autograd.grad.html. DDP documents that it
#: does not work with it.
DIFFERENTIATED = "torch.autograd.grad by the inputs"
#: A backward names the parameters whose gradients it computes, here all that the client trains:
#: https://docs.pytorch.org/docs/2.13/generated/torch.Tensor.backward.html
INPUTS = "backward(inputs=parameters)"
#: The client evaluates the module, for example a loaded one, before it builds the optimizer.
LATE_OPTIMIZER = "an optimizer after an evaluation"
#: Hooks of the client's optimizer, as those by which one averages weights; they run once in a step:
#: https://docs.pytorch.org/docs/2.13/generated/torch.optim.Optimizer.register_step_post_hook.html
STEPPED = "Optimizer.register_step_post_hook"
#: Code of a client that calls the backward, and builds the optimizer, of torch.
OF_TORCH = INPUTS, LATE_OPTIMIZER, STEPPED

_CHECKPOINT = "https://docs.pytorch.org/docs/2.13/checkpoint.html#torch.utils.checkpoint.checkpoint"


def unsupported(scenario: Scenario) -> str | None:
    """The reason against a setting, or None."""
    if CAST in scenario.settings and scenario.dtype != "fp32":
        return f"{CAST} would round a model in 16 bits to nothing else, and not its fp32 masters"
    if (reason := _unsupported_recomputation(scenario)) is not None:
        return reason
    if INPUTS in scenario.settings and scenario.model.recompute == "reentrant":
        return f"reentrant recomputation takes no {INPUTS}: {_CHECKPOINT}"
    return _unsupported_zeros(scenario) or _unsupported_differentiation(scenario)


def _unsupported_differentiation(scenario: Scenario) -> str | None:
    """The reason against a gradient by the inputs, or None."""
    if DIFFERENTIATED not in scenario.settings:
        return None
    if isinstance(scenario.model, Gpt):
        return f"there is no {DIFFERENTIATED} of tokens, which are integers"
    if scenario.model.recompute == "reentrant":
        return f"reentrant recomputation takes no torch.autograd.grad: {_CHECKPOINT}"
    return plain_settings.unsupported_repetition(scenario)


def _unsupported_zeros(scenario: Scenario) -> str | None:
    """The reason against a further loss that the client takes zero times, or None."""
    if not (zeros := {*FROZEN, KEPT}.intersection(scenario.settings)):
        return None
    frozen = zeros - {KEPT}
    if scenario.frozen_steps:
        return f"{min(zeros)} is for a block that trains in each step"
    if scenario.poison or scenario.dtype == "fp16":
        return f"{min(zeros)} goes back from 0 times a loss, which is no zero if it is not finite"
    if KEPT in zeros and (scenario.model.recompute != "none" or scenario.leaves_some_out):
        return f"with {KEPT} each leaf uses the first block, which is not recomputed"
    if frozen and plain_settings.HOOKED_AFTER in scenario.settings:
        return f"with several backwards {plain_settings.HOOKED_AFTER} would double the sum of their gradients each time"
    return plain_settings.unsupported_repetition(scenario)


def _unsupported_recomputation(scenario: Scenario) -> str | None:
    """The reason against a setting of recomputations, or None."""
    model = scenario.model
    for each in {WITHIN, HEAD}.intersection(scenario.settings):
        if model.recompute == "none":
            return f"{each} is for a model that recomputes"
    if TO_THE_END in scenario.settings and model.recompute != "non_reentrant":
        return f"{TO_THE_END} is for recomputation without reentry: {_CHECKPOINT}"
    structured = isinstance(model, Odd) and model.structured
    if WITHIN in scenario.settings and model.recompute == "reentrant" and structured:
        return f"reentrant recomputation finds no gradients of tensors in a dict or an object: {_CHECKPOINT}"
    return None


@dataclass
class _Recomputing:
    """A module's forward, which recomputes itself in the backward."""

    forward: Callable[..., Any]
    checkpoint: Callable[..., Any]

    def __call__(self, hidden: Tensor) -> Any:
        return self.checkpoint(self.forward, hidden) if torch.is_grad_enabled() else self.forward(hidden)


@dataclass
class _Keeping:
    """A block's forward, which keeps a loss of the block."""

    forward: Callable[..., Any]
    loss: Tensor | None = None

    def __call__(self, hidden: Tensor) -> Any:
        output = self.forward(hidden)
        if torch.is_grad_enabled():
            self.loss = hidden_of(self.forward(hidden)).float().square().mean()
        return output


def change_blocks(model: nn.Module, scenario: Scenario) -> None:
    """Let parts of the model that an engine will wrap recompute themselves, or keep a loss, if a setting says so."""
    by_torch = partial(checkpoint, use_reentrant=scenario.model.recompute == "reentrant")
    if WITHIN in scenario.settings:
        recompute_within(model, by_torch)
    if HEAD in scenario.settings:
        _recompute(model.get_submodule("head"), by_torch)
    if KEPT in scenario.settings:
        block = cast(Any, first_block(model))
        block.forward = _Keeping(block.forward)


def before_micro_step(call: Callable[..., Any], model: nn.Module, batch: Batch, scenario: Scenario) -> None:
    """Make a forward that raises, or take the gradient of the loss by the inputs, if settings say so; the samples stay
    as they are."""
    plain_settings.before_micro_step(call, model, batch, scenario)
    if DIFFERENTIATED in scenario.settings:
        tensors = {name: each for name, each in batch.items() if isinstance(each, Tensor) and each.is_floating_point()}
        inputs = {name: each.clone().requires_grad_() for name, each in tensors.items()}
        torch.autograd.grad(loss_of(scenario, call, {**batch, **inputs}), list(inputs.values()), allow_unused=True)


def with_kept(loss: Tensor, module: nn.Module, scenario: Scenario) -> Tensor:
    """The loss that the client goes back from, with zero times that which a block has kept, if a setting says so."""
    if KEPT not in scenario.settings:
        return loss
    keeping = next(each.forward for each in module.modules() if isinstance(each.forward, _Keeping))
    kept, keeping.loss = keeping.loss, None
    assert kept is not None  # the forward has gradients
    return loss + kept * 0.0


def recompute_within(model: nn.Module, checkpoint: Callable[..., Any]) -> None:
    """Let the blocks recompute themselves by a function of their forward and its input, and not the model."""
    cast(Any, model).spec = replace(cast(Any, model).spec, recompute="none")
    for block in model.get_submodule("blocks").children():
        _recompute(block, checkpoint)


def _recompute(module: nn.Module, checkpoint: Callable[..., Any]) -> None:
    cast(Any, module).forward = _Recomputing(module.forward, checkpoint)


@contextmanager
def frozen_block(model: nn.Module) -> Iterator[None]:
    """Inside, the first block does not train."""
    rests = trained(first_block(model))
    for p in rests:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in rests:
            p.requires_grad_(True)


def zero_loss(call: Callable[..., Any], batch: Batch, scenario: Scenario) -> Tensor:
    """Zero times the loss."""
    return loss_of(scenario, call, batch) * 0.0


def inputs(parameters: Iterable[Tensor], scenario: Scenario) -> list[Tensor] | None:
    """The parameters that the client's backward names, if it names them."""
    return [p for p in parameters if p.requires_grad] if INPUTS in scenario.settings else None


def cast_and_back(module: nn.Module, scenario: Scenario) -> None:
    """Cast the client's module to fp64 and back, if a setting says so."""
    if CAST in scenario.settings:
        module.double()
        module.float()


@contextmanager
def filled(scenario: Scenario) -> Iterator[None]:
    """Inside, new memory is NaN, and recomputations run to their ends, if settings say so."""
    with set_checkpoint_early_stop(TO_THE_END not in scenario.settings), _deterministic(scenario):
        yield


@contextmanager
def _deterministic(scenario: Scenario) -> Iterator[None]:
    if FILLED not in scenario.settings:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@contextmanager
def once(optimizer: torch.optim.Optimizer, scenario: Scenario) -> Iterator[None]:
    """Inside, the client's optimizer steps once, or leaves the step out.

    Raises:
        RuntimeError: hooks of the optimizer, if the Scenario has them, have run more than once.
    """
    if STEPPED not in scenario.settings:
        yield
        return
    calls: dict[str, int] = {"before": 0, "after": 0}
    handles = (
        optimizer.register_step_pre_hook(lambda *_: calls.update(before=calls["before"] + 1)),
        optimizer.register_step_post_hook(lambda *_: calls.update(after=calls["after"] + 1)),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if max(calls.values()) > 1:
        raise RuntimeError(f"in one step the optimizer's hooks ran more than once: {calls}")


@contextmanager
def in_step(scenario: Scenario) -> Iterator[None]:
    """Inside, the process has the settings that the client has in a step."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if SIXTEEN in scenario.settings else before)
    try:
        with filled(scenario):
            yield
    finally:
        torch.set_default_dtype(before)
