"""DeepSpeed's optimizer classes, as parameter groups of the engine's rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from zerobench.engine.errors import ConfigError
from zerobench.engine.optim.optimizer import ZeroOptimizer
from zerobench.engine.rules import of_type

#: Arguments of initialize(): what makes an optimizer of the parameters, and a schedule of the optimizer.
DeepSpeedOptimizerCallable = Callable[[Any], Optimizer]
DeepSpeedSchedulerCallable = Callable[[Optimizer], LRScheduler]


class _OfStages(type):
    """A class whose instances are the engine's optimizers at some stages: scripts branch on DeepSpeed's classes."""

    stages: tuple[int, ...] = ()

    def __instancecheck__(cls, instance: object) -> bool:
        return getattr(instance, "zero_stage", None) in cls.stages


class DeepSpeedZeroOptimizer(metaclass=_OfStages):
    """The optimizer of stages 1 and 2."""

    stages = (1, 2)


class DeepSpeedZeroOptimizer_Stage3(metaclass=_OfStages):
    """The optimizer of stage 3."""

    stages = (3,)


class _Taken(Optimizer):
    """Parameter groups of a rule. The engine that gets them steps them; until then the optimizer steps by itself.

    Args:
        rule: a type of the configuration's optimizer.
        params: parameters or groups.
        defaults: the hyperparameters by the rule's names.
    """

    def __init__(self, rule: str, params: Any, **defaults: Any) -> None:
        self._rule, self._is_taken = of_type(rule), False
        super().__init__(params, defaults)

    def taken(self) -> ZeroOptimizer:
        """The engine's optimizer with the same groups.

        Raises:
            ConfigError: the optimizer has stepped.
        """
        if self.state:
            raise ConfigError("the optimizer has stepped already; the engine starts from fresh state: pass a new one")
        self._is_taken = True
        return ZeroOptimizer(self._rule, self.param_groups, dict(self.defaults))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step the parameters by their ``grad``, as an optimizer of torch; returns the closure's loss.

        Raises:
            RuntimeError: an engine has the parameters, and only it has the gradients of all ranks.
        """
        if self._is_taken:
            raise RuntimeError(f"this {type(self).__name__} was given to an engine, which steps it; call engine.step()")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, parameter.grad, group)
        return loss

    @torch.no_grad()
    def _step(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """In fp32, as the engine: the parameter is rounded to its dtype, and its states are fp32."""
        state, names = self.state[parameter], self._rule.state_names(self.param_groups)
        if not state:
            state.update(step=0, **{name: torch.zeros_like(parameter, dtype=torch.float32) for name in names})
        state["step"] += 1
        states = [state[name].to(torch.float32, copy=True).flatten() for name in names]
        master = parameter.to(torch.float32, copy=True).flatten()
        factor, values = torch.ones(1, device=master.device), self._rule.values(group, int(state["step"]))
        self._rule.update(master, gradient.flatten(), states, None, factor, values)
        parameter.copy_(master.view_as(parameter))
        state.update({name: each.view_as(parameter) for name, each in zip(names, states, strict=True)})


class DeepSpeedCPUAdam(_Taken):
    """AdamW, or Adam if ``adamw_mode`` is False; the engine steps it on the device that holds its states."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
    ) -> None:
        if amsgrad or not bias_correction:
            raise ConfigError(f"{type(self).__name__} needs bias_correction=True and amsgrad=False; leave them out")
        hyper = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__("AdamW", model_params, **hyper, decoupled_weight_decay=adamw_mode)


class FusedAdam(DeepSpeedCPUAdam):
    """DeepSpeed's Adam of the GPU, with its own order of arguments."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        super().__init__(params, lr, bias_correction, betas, eps, weight_decay, amsgrad, adam_w_mode)


class DeepSpeedCPUAdagrad(_Taken):
    """Adagrad."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0,
        amsgrad: bool = False,
        fp32_optimizer_states: bool = True,
    ) -> None:
        super().__init__("Adagrad", model_params, lr=lr, lr_decay=0.0, eps=eps, weight_decay=weight_decay)


class DeepSpeedCPULion(_Taken):
    """Lion."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0,
        fp32_optimizer_states: bool = True,
    ) -> None:
        super().__init__("Lion", model_params, lr=lr, betas=betas, weight_decay=weight_decay)


class FusedLion(DeepSpeedCPULion):
    """DeepSpeed's Lion of the GPU, with its own order of arguments."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        super().__init__(params, lr, betas, weight_decay)


def as_client(optimizer: Any, parameters: Iterable[Any]) -> Optimizer | None:
    """The caller's optimizer as one that the engine takes: DeepSpeed's classes, callables and accelerate's dummy.

    None stands for the configuration's optimizer.
    """
    if optimizer is None or type(optimizer).__name__ == "DummyOptim":
        return None
    if not isinstance(optimizer, Optimizer) and callable(optimizer):
        optimizer = optimizer(parameters)
    return optimizer.taken() if isinstance(optimizer, _Taken) else optimizer
