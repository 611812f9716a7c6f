"""Many events in one run: for the client's properties, which have so few draws that two rare fields hardly meet.

A run in fp16 has overflows that use up the hysteresis and a scale that grows again; both runs have a schedule that the
engine steps, clipping, edits, a block that rests, a short step, and models that differ between the ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from zerobench.model_specs import Odd
from zerobench.scenario import LossScale, Scenario
from zerobench.suites.support.covering import among
from zerobench.suites.support.offered import fitted
from zerobench.suites.support.strategies import models, scenarios

#: The steps of such a run; before the fourth one a count is under way that a later step shows.
STEPS = 7
_EVENTS: dict[str, Any] = {
    "steps": STEPS,
    "accumulation": 2,
    "clip": 0.05,
    "zeroed": (),
    "short_steps": ((1, 1), (4, 1)),
    "edits": (2, 5),
    "gradient_edits": (3, 4),
    "frozen_steps": (2,),
    "ranks_differ": True,
    "lr_factors": (0.25, 2.0, 0.5, 1.0, 0.25, 2.0, 1.0),
    "scheduled_by": "engine",
    "weight_decay_factors": (1.0, 0.0, 2.0, 0.5),
    "autocast": False,
}
#: Overflows before the third and the fifth step use up a hysteresis; two good steps before the fourth are a part of a
#: window of three.
_FP16 = _EVENTS | {
    "dtype": "fp16",
    "loss_scale": LossScale(initial_power=4, window=3, hysteresis=2),
    "poison": ((0, 0), (4, 0)),
}
_FP32 = _EVENTS | {"dtype": "fp32", "poison": ((4, 0),), "communication_dtype": None, "accumulator_dtype": None}


@st.composite
def eventful(draw: st.DrawFn, /, **fixed: Any) -> Scenario:
    """Scenarios, of which most have many events; ``fixed`` as in :func:`scenarios`, and only a model in it stays."""
    which = draw(among("events", "fp16", "few", "fp32"))
    one = draw(scenarios(**{"model": models()} | fixed))
    if which == "few":
        return one
    groups = replace(one.optimizer, second_group=True, third_group=True, weight_decay=0.1)
    assert isinstance(one.model, Odd)
    # of a routed block no leaf may be left in a short step, and then nothing rests
    model = one.model if "model" in fixed else replace(one.model, routed=False, buffers=True)
    return fitted(one.but(**_FP16 if which == "fp16" else _FP32, optimizer=groups, model=model))
