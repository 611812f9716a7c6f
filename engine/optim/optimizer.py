"""Parameter groups and the optimizer's rule: from the config or from a client's torch optimizer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, SupportsIndex, TypeGuard

import torch
from torch import nn

from zerobench.engine.config.schema import Config
from zerobench.engine.errors import ConfigError
from zerobench.engine.optim.outcomes import Outcomes
from zerobench.engine.rules import of_client, of_type
from zerobench.engine.rules.client import options_of
from zerobench.engine.rules.rule import Rule

_NO_CHECKPOINT = (
    "the optimizer's state lies in shards over the ranks, so the optimizer alone cannot save or load it; call "
    "engine.save_checkpoint() and engine.load_checkpoint()"
)


class _Absent:
    """What a dict lacks whose values lie in the engine's shards: reads and changes of an entry are errors."""

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise RuntimeError(
            "the optimizer's state lies in shards over the ranks, and optimizer.state has none of it; read and set it "
            "by safe_get_full_optimizer_state() and safe_set_full_optimizer_state()"
        )

    __missing__ = clear = pop = popitem = update = setdefault = __setitem__ = __delitem__ = _refuse


class _NoEntry(_Absent, dict[str, Any]):
    """The state of a parameter, which is elsewhere."""


class NoState(_Absent, defaultdict[torch.Tensor, Any]):
    """The ``state`` of an optimizer whose state lies in the engine's shards: it has none of it, and changes are errors.

    A client that clears it to begin with fresh moments would go on with the old ones. So would one that clears each of
    its values, therefore it has one, without entries: a loop that moves what it finds to a device finds nothing.
    """

    def values(self) -> Any:
        """One entry, if there is none.

        Keys and items are those of an empty dict, which torch and Lightning go through.
        """
        return super().values() or {None: _NoEntry()}.values()


class StateDict(dict[str, Any]):
    """The ``state_dict()`` of an optimizer without its state: libraries ask for it and do not use it.

    Reading its ``state``, or saving it, is an error, so that no file lacks the state in silence.
    """

    def __missing__(self, key: str) -> NoReturn:
        raise RuntimeError(_NO_CHECKPOINT) if key == "state" else KeyError(key)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise RuntimeError(_NO_CHECKPOINT)


class ZeroOptimizer(torch.optim.Optimizer):
    """The optimizer that ``initialize`` returns: the parameter groups, for schedulers and for reading.

    The engine keeps its state in shards (``safe_get_full_optimizer_state`` reads it), and ``engine.step()`` steps it.
    """

    #: The engine's outcomes.
    outcomes: Outcomes | None = None
    #: The states that the engine keeps, since it has laid out the parameters: a client may change an option that they
    #: depend on, such as a momentum.
    kept: tuple[str, ...] | None = None
    #: The step of a surface whose callers may step the optimizer; the engine's own API has none.
    stepped_by: Callable[[], object] | None = None
    #: What a surface does when its callers zero the gradients.
    zeroed_by: Callable[[], object] | None = None
    #: The gradient's norm in the last step, of a surface whose callers read it here.
    norm_by: Callable[[], Any] | None = None

    def __init__(self, rule: Rule[Any], groups: list[dict[str, Any]], defaults: dict[str, Any]) -> None:
        self.rule = rule
        super().__init__(groups, defaults)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Refuse, unless a surface offers it: only the engine has the gradients of all ranks that a step needs."""
        if self.stepped_by is not None and closure is None:
            self.stepped_by()
            return
        raise RuntimeError("call engine.step(), not optimizer.step(): the gradients and the state live in the engine")

    @property
    def state(self) -> NoState:
        """Empty; see NoState."""
        return NoState()

    @state.setter
    def state(self, state: object) -> None:
        """Refuse, once an engine has the state; torch's constructor sets an empty one."""
        if self.outcomes is not None:
            self.state.clear()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop what other engines' backwards left in ``grad``; on a surface that offers it, a step's gradients, too."""
        super().zero_grad(set_to_none)
        if self.zeroed_by is not None:
            self.zeroed_by()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as long as no engine has laid out the parameters."""
        if self.outcomes is not None:
            raise RuntimeError("the engine has laid out its parameters; give all groups to initialize()")
        super().add_param_group(param_group)

    # torch's schedulers warn if they are stepped before the optimizer; here engine.step() steps them in order.
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    _opt_called = True

    # torch runs no hooks around step(): the surface that offers it runs them around engine.step().
    step.hooked = True  # type: ignore[attr-defined]

    def state_dict(self) -> StateDict:
        """The groups alone; an object that refuses to be saved and has no state."""
        return StateDict(param_groups=[options_of(group) for group in self.param_groups])

    def load_state_dict(self, state_dict: Any) -> NoReturn:
        """Refuse: the state is not in it."""
        raise RuntimeError(_NO_CHECKPOINT)

    @property
    def overflow(self) -> bool:
        """Whether an overflow skipped the last step."""
        return self.outcomes is not None and self.outcomes.overflow

    @property
    def loss_scale(self) -> float:
        """The current loss scale; 1 except in fp16."""
        return 1.0 if self.outcomes is None else self.outcomes.scale

    cur_scale = loss_scale

    @property
    def _global_grad_norm(self) -> Any:
        """The norm that a surface gives; it has DeepSpeed's name."""
        if self.norm_by is None:
            raise AttributeError("the optimizer has no norm; call engine.get_global_grad_norm()")
        return self.norm_by()

    @property
    def trains(self) -> bool:
        """Whether there is a parameter to train."""
        return any(group["params"] for group in self.param_groups)

    @property
    def state_names(self) -> tuple[str, ...]:
        """torch's names of the state kept for each element, except the master weight."""
        return self._needed if self.kept is None else self.kept

    @property
    def _needed(self) -> tuple[str, ...]:
        return self.rule.state_names(self.param_groups)

    def keep_states(self) -> tuple[str, ...]:
        """Decide on the states, which stay as they are now; returns their names."""
        self.kept = self._needed
        return self.kept

    def check_options(self) -> None:
        """Demand that the engine has a step for the groups' options, and the states that they need: a client may have
        changed them since the engine was built.

        Raises:
            RuntimeError: it has not.
        """
        lacking = next((name for group in self.param_groups for name in self.rule.lacks if group.get(name)), None)
        if lacking is not None:
            raise RuntimeError(
                f"the option {lacking} of a parameter group is set, and it was not when the engine was built, so the "
                f"engine steps by its rule {self.rule.name}, which lacks it; pass an optimizer that has the option"
            )
        missing = ", ".join(name for name in self._needed if name not in self.state_names)
        if missing:
            raise RuntimeError(
                f"the options of a parameter group need the state {missing}, and no group needed it when the engine "
                "was built, so the engine does not keep it; build the engine with the option in one group, for example "
                "a momentum that is not 0"
            )

    def values(self, group: int, step: int) -> Any:
        """The current hyperparameters of one group for the given step."""
        return self.rule.values(self.param_groups[group], step)


def make_optimizer(
    model: nn.Module, config: Config, parameters: Iterable[Any] | None, client: torch.optim.Optimizer | None
) -> ZeroOptimizer:
    """The optimizer of ``client`` if given, else of the config, over ``parameters`` (default: all trainable ones).

    If neither gives one, the optimizer has no parameters, and the engine does not train.

    Raises:
        ConfigError: the engine does not support the optimizer, or its groups do not cover the trainable parameters
            exactly.
    """
    if client is not None:
        optimizer = client if _is_free(client) else _of_client(client)
    elif config.optimizer is None:
        rule = of_type("SGD")
        return ZeroOptimizer(rule, [{"params": []}], rule.defaults(rule.params(), "SGD"))
    else:
        optimizer = _of_config(config, parameters if parameters is not None else model.parameters())
    _check_cover(model, optimizer)
    return optimizer


def _is_free(client: torch.optim.Optimizer) -> TypeGuard[ZeroOptimizer]:
    """Whether the client has made a ZeroOptimizer, which no engine has taken yet."""
    return isinstance(client, ZeroOptimizer) and client.outcomes is None


def _of_client(client: torch.optim.Optimizer) -> ZeroOptimizer:
    """The optimizer of a client, with the client's own groups, so that a schedule of the client's optimizer holds."""
    rule = of_client(client)
    if not rule.is_fresh(client):
        raise ConfigError("the optimizer has stepped already; the engine starts from fresh state: pass a new one")
    return ZeroOptimizer(rule, client.param_groups, dict(client.defaults))


def _of_config(config: Config, parameters: Iterable[Any]) -> ZeroOptimizer:
    assert config.optimizer is not None
    rule = of_type(config.optimizer.type)
    given = [p for p in parameters if isinstance(p, dict) or p.requires_grad]
    groups = (
        [g if isinstance(g, dict) else {"params": [g]} for g in given] if _has_dicts(given) else [{"params": given}]
    )
    groups = [{**g, "params": [p for p in g["params"] if p.requires_grad]} for g in groups]
    return ZeroOptimizer(rule, groups, rule.defaults(config.optimizer.params, config.optimizer.type))


def _has_dicts(items: list[Any]) -> bool:
    return any(isinstance(item, dict) for item in items)


def _check_cover(model: nn.Module, optimizer: ZeroOptimizer) -> None:
    covered = {p for group in optimizer.param_groups for p in group["params"]}
    names = {p: name for name, p in model.named_parameters()}
    for p in covered - names.keys():
        raise ConfigError(
            f"the optimizer holds a parameter of shape {tuple(p.shape)} that the model does not have; give it "
            "parameters of the model only"
        )
    for p, name in names.items():
        if p.requires_grad and p not in covered:
            raise ConfigError(f"parameter {name!r} trains but is in no group; add it, or set requires_grad_(False)")
