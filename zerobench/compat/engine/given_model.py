"""The model as the caller gives it and goes on to hold: its precision, its compilation, and changes of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zerobench.compat.config import Settings
from zerobench.compat.log import notice
from zerobench.engine import Engine
from zerobench.engine.inspect import keep_edits
from zerobench.engine.registry import has_engine

#: The configuration that keeps parameters of a dtype as they are.
_KEPT: dict[torch.dtype, dict[str, Any]] = {
    torch.bfloat16: {"bf16": {"enabled": True}},
    torch.float16: {"fp16": {"enabled": True, "loss_scale": 1}},
}


def keep_precision(model: nn.Module, settings: Settings) -> None:
    """Without fp16 and bf16 in the configuration, train a model in 16 bits as it is; DeepSpeed does not cast it either.

    A model of several dtypes becomes fp32, and rank 0 logs it.
    """
    if any(settings.engine.get(name, {}).get("enabled") for name in ("fp16", "bf16")):
        return
    floating = {p.dtype for p in model.parameters() if p.is_floating_point()}
    kept = _KEPT.get(next(iter(floating))) if len(floating) == 1 else None
    if kept is not None:
        settings.engine.update(kept)
        notice(f"the parameters are in 16 bits, so the model trains as with {kept}")
    elif len(floating) > 1:
        names = ", ".join(sorted(map(str, floating)))
        notice(f"the parameters are {names}, and become float32; enable bf16 or fp16 to train in 16 bits")


def freeze_others(model: nn.Module, groups: list[Any]) -> None:
    """Freeze the parameters that are in no group: DeepSpeed does not train them either. Rank 0 logs them."""
    given = {p for group in groups for p in (group["params"] if isinstance(group, dict) else [group])}
    others = {name: p for name, p in model.named_parameters() if p.requires_grad and p not in given}
    for parameter in others.values():
        parameter.requires_grad_(False)
    if others:
        notice(f"in no parameter group, so frozen: {', '.join(others)}")


class GivenModel:
    """Watches the model, which stays in the caller's hands while the engine trains it.

    What ``Module.load_state_dict`` loads becomes the masters' values, too; else the next step would undo it.

    Args:
        engine: has the model.
        groups: the parameters or groups that the caller gave to train.
    """

    def __init__(self, engine: Engine, groups: list[Any]) -> None:
        self._engine = engine
        given = {p for group in groups for p in (group["params"] if isinstance(group, dict) else [group])}
        self._known = list(engine.module.parameters())  # kept, so that no other parameter gets an id of these
        self._ids = {*map(id, self._known)}
        named = engine.module.named_parameters()
        self._frozen = {name: p for name, p in named if p in given and not p.requires_grad}
        self._hooks = [
            module.register_load_state_dict_post_hook(_keep_loaded)  # type: ignore[no-untyped-call]
            for module in engine.module.modules()
            if not isinstance(module, torch.jit.ScriptModule)  # takes no such hook
        ]

    def check(self) -> None:
        """Refuse a step that would not train what the model has.

        Raises:
            RuntimeError: the engine was destroyed, or a parameter trains that was frozen or not there at
                ``initialize()``.
        """
        self.check_lives()
        self._check_new()
        for name, parameter in self._frozen.items():
            if parameter.requires_grad:
                raise RuntimeError(
                    f"parameter {name!r} was frozen at initialize() and has requires_grad now, but the engine has no "
                    "optimizer state for it; freeze it after initialize(), or leave it out of model_parameters"
                )

    def check_lives(self) -> None:
        """Refuse a call of an engine that has given its model up.

        Raises:
            RuntimeError: the engine was destroyed.
        """
        if self._engine.destroyed:
            raise RuntimeError(
                "this engine was destroyed, by destroy(), accelerate's free_memory() or a later initialize() of its "
                "model, or of one that shares a layer with it at stage 3; call initialize() again (with Hugging Face: "
                "evaluate before the training in a Trainer of its own), or give one engine a model that contains both"
            )

    def _check_new(self) -> None:
        for name, parameter in self._engine.module.named_parameters():
            if id(parameter) not in self._ids and parameter.requires_grad:
                raise RuntimeError(
                    f"parameter {name!r} is new since initialize(), as of a layer that was replaced or added, so the "
                    "engine would not train it; change the model before initialize(), or call initialize() again"
                )

    def close(self) -> None:
        """Leave the model as it is."""
        for hook in self._hooks:
            hook.remove()


def _keep_loaded(module: nn.Module, _: object) -> None:
    loaded = list(module.parameters(recurse=False))
    for child in module.children():
        if isinstance(child, torch.jit.ScriptModule):
            loaded += child.parameters()
    keep_edits(each for each in loaded if has_engine(each))  # a copy of the model has this hook, too
