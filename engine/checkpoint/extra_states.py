"""Extra states: what ``get_extra_state()`` of modules returns, beside their parameters and buffers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import nn

from zerobench.engine.checkpoint.plain import decode, encode
from zerobench.engine.errors import CheckpointError

_log = logging.getLogger("zerobench.engine.checkpoint")


def encoded_states(model: nn.Module) -> dict[str, Any]:
    """The extra states as JSON, by the name of the module; it logs those that a checkpoint cannot hold."""
    found, left = {}, []
    for name, module in _having(model).items():
        try:
            found[name] = encode(module.get_extra_state(), "its extra state")
        except (CheckpointError, RuntimeError) as error:  # the module may read a parameter that is not whole
            left.append(f"{name or 'the model'}: {error}")
    if left:
        _log.warning(
            "the checkpoint has no extra state of %s; save what get_extra_state() returns in client_state in another "
            "form, and give it to set_extra_state() after a load",
            "; of ".join(left),
        )
    return found


def restore_extra_states(model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Give each module its saved extra state; the others keep theirs."""
    for name, module in _having(model).items():
        if name in saved:
            module.set_extra_state(decode(saved[name]))


def _having(model: nn.Module) -> dict[str, nn.Module]:
    """The modules with an extra state, by name."""
    default = nn.Module.get_extra_state
    return {name: each for name, each in model.named_modules() if type(each).get_extra_state is not default}
