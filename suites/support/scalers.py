"""Dynamic loss scales over a load: what was counted before the save decides after it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from zerobench.scenario import LossScale, Scenario
from zerobench.suites.support.covering import among
from zerobench.suites.support.strategies import scenarios


@st.composite
def of_a_scaler(draw: st.DrawFn, /, **fixed: Any) -> Scenario:
    """Scenarios in which an overflow comes one or two steps before the resume, and either the scale grows a window
    after it, or further overflows use up the hysteresis: what the scaler has counted before the save decides after the
    load. In others all overflows come after it, so that an engine which has trained had used up more than the saved
    one. Mostly the engine that counts and saves has itself loaded."""
    # four values of one field: few draws have each, and a load hides no count if the overflow comes right before it
    then = draw(among("load then", "grows later", "grows", "used up", "all"))
    grows, before, ago = then.startswith("grows"), then != "all", 2 if then == "grows later" else 1
    resume, window = draw(st.integers(ago, 3)), draw(among("window", 2, 3)) + ago - 1
    hysteresis = draw(among("hysteresis", 1, 2)) if grows else draw(among("hysteresis", 2, 3))
    bad = [resume - ago] if grows else range(resume - before, resume - before + hysteresis)
    scale = LossScale(
        initial_power=draw(st.sampled_from([3, 8])),
        window=window,
        hysteresis=hysteresis,
        consecutive_hysteresis=grows and draw(st.booleans()),
        minimum=1.0,  # DeepSpeed takes whole numbers only
    )
    steps = resume + (window + 2 if grows else hysteresis + 2 - before)
    given = {"dtype": "fp16", "loss_scale": scale, "reads": ()}
    resumes = (resume - 1, resume) if resume > 1 else (resume,)
    one = draw(scenarios(steps=steps, poison=(), resumes=resumes, **given | fixed))
    return one.but(poison=tuple((step, draw(st.integers(0, one.leaves_of(step) - 1))) for step in bad), zeroed=())
