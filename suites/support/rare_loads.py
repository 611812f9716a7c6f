"""Scenarios of loads, and of replicas, with events that draws seldom have together; see rare_values.py."""

from __future__ import annotations

from zerobench.model_specs import Odd
from zerobench.scenario import LossScale, Optimizer, Read, Scenario

RARE_LOADS = {
    # the settings of the scale hold after a load: a good step refills the hysteresis, and the least scale is above one;
    # skipped steps leave momentum as it is
    "least scale after a load": Scenario(
        model=Odd(width=3, hidden=(2, 7)),
        dtype="fp16",
        steps=8,
        chunk=32,
        optimizer=Optimizer(name="sgd", lr=0.1, second_group=True),
        loss_scale=LossScale(initial_power=3, hysteresis=2, consecutive_hysteresis=True, minimum=4.0),
        poison=((2, 0), (4, 1), (5, 0), (6, 0)),
        resumes=(1,),
    ),
    # a save after a short step that moves buffers; after the load the client sets parameters that have fewer rows than
    # there are ranks, and evaluates before it trains, while an engine may keep parameters whole
    "edits after a load on three ranks": Scenario(
        model=Odd(width=5, hidden=(2, 7), buffers=True),
        world=3,
        steps=4,
        accumulation=3,
        short_steps=((0, 1),),
        chunk=32,
        max_live=1000,
        optimizer=Optimizer(lr=1e-2),
        resumes=(1,),
        edits=(2, 3),
        reads=(Read("evaluation", 2, 0), Read("evaluation", 3, 0)),
    ),
    # an evaluation within each step, of parameters with one use, for which sums in 16 bits have a bound; and one
    # between an edit and the next forward, which must have no cast of the values before
    "evaluations under autocast": Scenario(
        model=Odd(width=5, hidden=(7, 2), scalar=True),
        steps=3,
        accumulation=2,
        chunk=32,
        autocast=True,
        optimizer=Optimizer(lr=1e-2, second_group=True),
        resumes=(2,),
        edits=(1, 2),
        reads=(
            Read("evaluation", 0, 1),
            Read("evaluation", 1, 0),
            Read("evaluation", 1, 1),
            Read("evaluation", 2, 0),
            Read("evaluation", 2, 1),
        ),
    ),
    # the second step is short
    "replicas of the shards": Scenario(
        model=Odd(width=6, hidden=(7, 4)),
        world=4,
        replicate=2,
        steps=3,
        accumulation=2,
        short_steps=((1, 1),),
        chunk=32,
        clip=0.05,
    ),
    # the state of no step has states and counts, all of them zero, for an engine that has others
    "state of no step": Scenario(
        model=Odd(width=5, hidden=(7, 2), buffers=True),
        steps=2,
        chunk=32,
        optimizer=Optimizer(name="adam", lr=1e-2, second_group=True),
        resumes=(0,),
        loads_into="trained",
        reads=(Read("optimizer_state", 0, 0), Read("evaluation", 0, 0)),
    ),
    # a second copy of the shards, which a load must renew
    "shards in groups": Scenario(world=4, steps=3, resumes=(2,), settings=("zero_hpz_partition_size",)),
}
