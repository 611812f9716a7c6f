"""The parts of a step that recordings are compared in."""

from __future__ import annotations

from typing import Literal, get_args

Part = Literal[
    "losses",
    "loss_scale",
    "gradients",
    "norm",
    "skipped",
    "progress",
    "optimizer_state",
    "parameters",
    "model_parameters",
    "reads",
    "evaluation",
]
#: In the order in which a step makes them: the first differing part is the nearest to the fault. The loss scale is the
#: one in force in the step's backward, so a wrong one shows before the gradients that it makes overflow or underflow.
ALL_PARTS: tuple[Part, ...] = get_args(Part)
#: Those of the steps, for a run that ends without an evaluation.
PARTS_OF_STEPS: tuple[Part, ...] = tuple(part for part in ALL_PARTS if part != "evaluation")
