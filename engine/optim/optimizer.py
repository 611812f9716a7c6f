"""Parameter groups and the optimizer's rule: from the config or from a client's torch optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch import nn

from zerobench.engine.config.schema import AdamParams, Config
from zerobench.engine.errors import ConfigError
from zerobench.engine.ops.update import AdamRule, SgdRule

_CLIENTS: dict[type[torch.optim.Optimizer], str] = {
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adam",  # its groups say decoupled_weight_decay
    torch.optim.SGD: "sgd",
}
_REFUSED = ("amsgrad", "maximize", "nesterov", "dampening", "capturable", "differentiable")
_NO_CHECKPOINT = (
    "the optimizer's state lies in shards over the ranks and has no checkpoint; save safe_get_full_fp32_param of each "
    "parameter, and start the optimizer afresh"
)


class ZeroOptimizer(torch.optim.Optimizer):
    """What ``initialize`` returns as the optimizer: the parameter groups, for schedulers and for reading.

    Its state lives in shards in the engine (``safe_get_full_optimizer_state`` reads it), and ``engine.step()`` steps.
    """

    def __init__(self, rule: str, groups: list[dict[str, Any]], defaults: dict[str, Any]) -> None:
        self.rule = rule
        super().__init__(groups, defaults)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Refuse: a step needs the gradients of every rank, which the engine has."""
        raise RuntimeError("call engine.step(), not optimizer.step(): the gradients and the state live in the engine")

    # torch's schedulers warn unless they find that step was called before theirs; here engine.step() calls theirs.
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    _opt_called = True

    def state_dict(self) -> NoReturn:
        """Refuse: what torch would save is the groups without the state."""
        raise RuntimeError(_NO_CHECKPOINT)

    def load_state_dict(self, state_dict: Any) -> NoReturn:
        """Refuse likewise."""
        raise RuntimeError(_NO_CHECKPOINT)

    @property
    def state_names(self) -> tuple[str, ...]:
        """torch's names of the state kept for each element, besides the master weight."""
        if self.rule != "sgd":
            return ("exp_avg", "exp_avg_sq")
        return ("momentum_buffer",) if any(group["momentum"] for group in self.param_groups) else ()

    def adam_rule(self, group: int, step: int) -> AdamRule:
        """The hyperparameters of Adam of one group now, for the given step."""
        g = self.param_groups[group]
        (beta1, beta2), decoupled = g["betas"], g["decoupled_weight_decay"]
        return AdamRule(float(g["lr"]), beta1, beta2, g["eps"], g["weight_decay"], decoupled, step)

    def sgd_rule(self, group: int) -> SgdRule:
        """The hyperparameters of SGD of one group now."""
        g = self.param_groups[group]
        return SgdRule(float(g["lr"]), g["momentum"], g["weight_decay"])


def make_optimizer(
    model: nn.Module, config: Config, parameters: Iterable[Any] | None, client: torch.optim.Optimizer | None
) -> ZeroOptimizer:
    """The optimizer of ``client`` if given, else of the config, over ``parameters`` (default: all that train).

    Raises:
        ConfigError: no optimizer, one that the engine does not offer, or groups that do not cover the trainable
            parameters exactly.
    """
    if client is not None:
        optimizer = _of_client(client)
    elif config.optimizer is None:
        raise ConfigError("no optimizer: give config['optimizer'] or pass a torch optimizer to initialize")
    else:
        optimizer = _of_config(config, parameters if parameters is not None else model.parameters())
    _check_cover(model, optimizer)
    return optimizer


def _of_client(client: torch.optim.Optimizer) -> ZeroOptimizer:
    name = _CLIENTS.get(type(client))
    if name is None:
        raise ConfigError(f"optimizer {type(client).__name__} is not offered; use torch.optim.Adam, AdamW or SGD")
    if client.state:
        raise ConfigError("the optimizer has stepped already; the engine starts from fresh state: pass a new one")
    for group in client.param_groups:
        for option in _REFUSED:
            if group.get(option):
                raise ConfigError(f"{type(client).__name__}({option}={group[option]!r}) is not offered; leave it off")
    return ZeroOptimizer(name, [dict(group) for group in client.param_groups], dict(client.defaults))


def _of_config(config: Config, parameters: Iterable[Any]) -> ZeroOptimizer:
    assert config.optimizer is not None
    params = config.optimizer.params
    given = [p for p in parameters if isinstance(p, dict) or p.requires_grad]
    groups = (
        [g if isinstance(g, dict) else {"params": [g]} for g in given] if _has_dicts(given) else [{"params": given}]
    )
    groups = [{**g, "params": [p for p in g["params"] if p.requires_grad]} for g in groups]
    defaults = params.model_dump()
    if isinstance(params, AdamParams):
        defaults["decoupled_weight_decay"] = defaults.pop("adam_w_mode") or config.optimizer.type == "AdamW"
        return ZeroOptimizer("adam", groups, defaults)
    return ZeroOptimizer("sgd", groups, defaults)


def _has_dicts(items: list[Any]) -> bool:
    return any(isinstance(item, dict) for item in items)


def _check_cover(model: nn.Module, optimizer: ZeroOptimizer) -> None:
    covered = {p for group in optimizer.param_groups for p in group["params"]}
    names = {p: name for name, p in model.named_parameters()}
    for p in covered - names.keys():
        raise ConfigError(f"the optimizer holds a parameter of shape {tuple(p.shape)} that the model does not have")
    for p, name in names.items():
        if p.requires_grad and p not in covered:
            raise ConfigError(f"parameter {name!r} trains but is in no group; add it, or set requires_grad_(False)")
