"""DeepSpeed's optimizer classes, as torch optimizers that the engine takes over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.optim import Adagrad, Adam, AdamW, Optimizer

from zerobench.engine.errors import ConfigError


class _Taken(Optimizer):
    """Parameter groups of a rule; the engine steps them."""

    def as_torch(self) -> Optimizer:
        """A fresh torch optimizer of the same rule and groups."""
        raise NotImplementedError

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
        self.adamw = adamw_mode
        super().__init__(model_params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def as_torch(self) -> Optimizer:
        return _same(AdamW if self.adamw else Adam, self)


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
        self, model_params: Any, lr: float = 1e-2, eps: float = 1e-10, weight_decay: float = 0, amsgrad: bool = False
    ) -> None:
        super().__init__(model_params, {"lr": lr, "eps": eps, "weight_decay": weight_decay})

    def as_torch(self) -> Optimizer:
        return _same(Adagrad, self)


def as_client(optimizer: Any, parameters: Iterable[Any]) -> Optimizer | None:
    """The caller's optimizer as one that the engine takes: DeepSpeed's classes, callables and accelerate's dummy.

    None stands for the configuration's optimizer.
    """
    if optimizer is None or type(optimizer).__name__ == "DummyOptim":
        return None
    if not isinstance(optimizer, Optimizer) and callable(optimizer):
        optimizer = optimizer(parameters)
    return optimizer.as_torch() if isinstance(optimizer, _Taken) else optimizer


def _same(rule: Callable[..., Optimizer], given: Optimizer) -> Optimizer:
    made = rule([dict(group) for group in given.param_groups])
    made.defaults.update(given.defaults)
    return made
