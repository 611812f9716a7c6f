"""DirectBackward: ``loss.backward()`` in place of ``engine.backward(loss)``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zerobench.engine import Engine
from zerobench.engine.gradients import in_backward_of_engine
from zerobench.engine.outputs import tensors_in


class DirectBackward:
    """Makes a backward that the caller begins a micro-step of the engine.

    The outputs of the engine's forward have hooks. If one gets its gradient in a backward that no engine has begun, the
    micro-step begins; it ends with this backward. Several engines may be part of one, and each has a micro-step. A
    ``torch.autograd.grad`` is none, because no parameter gets its gradient.

    Args:
        engine: the reference engine.
        around: the context of each backward.
    """

    #: The running backwards of callers, as autograd counts them.
    _tasks: ClassVar[set[int]] = set()

    def __init__(self, engine: Engine, around: Callable[[], AbstractContextManager[None]]) -> None:
        self._engine, self._around = engine, around
        trained = [state.unit for state in engine.states if state.unit.trainable]
        self._parameters = [slot.parameter for unit in trained for slot in unit.slots]
        self._task: int | None = None
        self._micro_step = ExitStack()
        self._scaled = False

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the loss scale."""
        self._scaled = True
        return loss * self._engine.loss_scale

    def watch(self, outputs: Any) -> None:
        """Notice a backward from these outputs."""
        if self._parameters and torch.is_grad_enabled():
            for output in tensors_in(outputs):
                if output.grad_fn is not None:
                    output.register_hook(lambda _: self._reached())  # type: ignore[no-untyped-call]

    def _reached(self) -> None:
        """The micro-step begins, unless an engine runs this backward or one around it, or it is for no parameter."""
        task = torch._C._current_graph_task_id()
        if task == self._task or (in_backward_of_engine() and task not in self._tasks):
            return
        if self._engine.reducer.running:
            return
        if not any(_receives_gradient(parameter) for parameter in self._parameters):
            return
        if self._engine.loss_scale != 1 and not self._scaled:
            raise RuntimeError(
                "fp16 scales the loss, and this backward is not the engine's; call engine.backward(loss), or "
                "engine.scale(loss).backward()"
            )
        self._task, self._scaled = task, False
        self._tasks.add(task)
        self._micro_step.enter_context(self._around())
        self._micro_step.enter_context(self._engine.micro_step())
        self._engine.reducer.entered()
        torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self._forget()
        self._micro_step.close()

    def _forget(self) -> None:
        self._tasks.discard(self._task or 0)
        self._task = None

    def adopt(self) -> None:
        """Before a ``step()`` without a backward: gradients from another engine's backward are those of a micro-step.

        A collective if no backward of this engine precedes the step.

        Raises:
            RuntimeError: the engine has a loss scale, and the other engine's may differ.
        """
        if not self._engine.accumulation.waiting or not self._engine.optimizer.trains:
            return
        if "True" not in self._engine.ranks.same_everywhere(str(self._engine.reducer.adopt())):
            return
        if self._engine.loss_scale != 1:
            raise RuntimeError(
                "step() follows a backward of another engine, which has scaled the loss by its own loss scale; train "
                "the models of one loss in bf16 or fp32, or in one engine"
            )
        with self._around(), self._engine.micro_step():
            pass

    def check_ended(self) -> None:
        """End a micro-step whose backward an exception has interrupted; the engine then refuses its use."""
        if self._task is not None and torch._C._current_graph_task_id() == -1:
            self._forget()
            self._micro_step.__exit__(RuntimeError, RuntimeError("interrupted"), None)


def _receives_gradient(parameter: nn.Parameter) -> bool:
    """Whether the running backward accumulates into the parameter's ``grad``."""
    with torch.enable_grad(), torch._C.DisableTorchFunctionSubclass():  # one that is not whole refuses every use
        view: Any = parameter.view_as(parameter)
    try:
        return bool(torch._C._will_engine_execute_node(view.grad_fn.next_functions[0][0]))
    except RuntimeError:  # it is a torch.autograd.grad of this parameter, which accumulates nothing
        return False
