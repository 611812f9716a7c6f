"""DeepSpeed's optimizer classes, as parameter groups of the engine's rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

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
    """Parameter groups of a rule; the engine steps them.

    Args:
        rule: a type of the configuration's optimizer.
        params: parameters or groups.
        defaults: the hyperparameters by the rule's names.
    """

    def __init__(self, rule: str, params: Any, **defaults: Any) -> None:
        self._rule = of_type(rule)
        super().__init__(params, defaults)

    def taken(self) -> ZeroOptimizer:
        """The engine's optimizer with the same groups."""
        return ZeroOptimizer(self._rule, self.param_groups, dict(self.defaults))

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Refuse: only the engine has the gradients of all ranks."""
        raise RuntimeError(f"{type(self).__name__} steps inside the engine; call engine.step()")


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
