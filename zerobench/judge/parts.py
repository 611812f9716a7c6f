"""The parts of a step that recordings are compared in."""

from __future__ import annotations

from typing import Literal, get_args

Part = Literal[
    "losses",
    "gradients",
    "norm",
    "skipped",
    "loss_scale",
    "optimizer_state",
    "parameters",
    "model_parameters",
    "reads",
    "evaluation",
]
#: In the order in which a step makes them: the first differing part is the nearest to the fault.
ALL_PARTS: tuple[Part, ...] = get_args(Part)
