"""Scenarios with values that the strategies leave out, because they cost too much or would displace common ones.

Each has several such values, so that few runs have all of them. A draw of the strategies has up to three blocks and
micro-steps, runs of more than five steps without accumulation, and one bad leaf in a bad step.
"""

from __future__ import annotations

from zerobench.model_specs import Odd
from zerobench.scenario import LossScale, Optimizer, Read, Scenario
from zerobench.suites.support.rare_loads import RARE_LOADS
from zerobench.suites.support.rare_models import RARE_MODELS
from zerobench.suites.support.rare_steps import RARE_STEPS

#: A reading at each moment of a step at which a stale copy may be made.
_EVALUATIONS = Read("evaluation", 0, 1), Read("evaluation", 1, 1), Read("evaluation", 1, -1)

RARE_VALUES = {
    # as many units as no ring of buffers has, some of them kept whole by an evaluation just before the update; more
    # parameters than a word has bits
    "many blocks": Scenario(
        model=Odd(width=3, hidden=(1,) * 16, norm=False),
        steps=2,
        chunk=32,
        prefetch_bucket=300,
        max_live=1000,
        reads=_EVALUATIONS,
    ),
    # a parameter of more than 2**16 elements, whose last sub-group and shard are short
    "large parameter": Scenario(
        model=Odd(width=260, hidden=(261,), norm=False, activation="tanh"),
        world=3,
        steps=2,
        sub_group=50_001,
        reduce_bucket=40_000,
        allgather_bucket=70_001,
        offload_optimizer="nvme",
        offload_param="nvme",
        buffer_size=65536,
    ),
    # a shard in a file has three pieces, of which the last is short; updates begin and end within a piece, and a load
    # of the model alone sets all of them
    "pieces of a shard": Scenario(
        model=Odd(width=100, hidden=(101,), norm=False, activation="tanh"),
        world=1,
        steps=3,
        resumes=(2,),
        loads="model",
        sub_group=7_001,
        offload_optimizer="cpu",
        offload_param="nvme",
        buffer_size=8192,
    ),
    # a schedule begins at a rate of zero; states move all the same
    "rate of zero": Scenario(
        steps=3,
        dtype="bf16",
        optimizer=Optimizer(lr=0.0, weight_decay=0.1, second_group=True),
        offload_optimizer="cpu",
    ),
    # decoupled decay turns signs; eps is below every root of a second moment
    "large rate and decay": Scenario(
        model=Odd(norm=False, activation="tanh"),
        steps=3,
        optimizer=Optimizer(lr=1.0, weight_decay=2.0, eps=1e-12, betas=(0.9, 0.9999)),
        clip=1e6,
    ),
    # all gradients underflow: the norm is zero, and momentum and decay go on
    "gradients of zero": Scenario(
        dtype="fp16",
        steps=3,
        clip=0.05,
        optimizer=Optimizer(name="sgd", lr=0.1, weight_decay=0.1),
        loss_scale=LossScale(static=2.0**-60),
        chunk=32,
    ),
    # dividing by it rounds, so that it matters how often an engine divides; in the first step one leaf of ten has a
    # gradient, so that the norm is small and the 1e-6 beside it in the clip coefficient is no rounding
    "scale that is no power of two": Scenario(
        model=Odd(width=33),
        dtype="fp16",
        steps=2,
        accumulation=5,
        micro_batch=4,
        clip=0.05,
        loss_scale=LossScale(static=1000.0),
        zeroed=tuple((0, leaf) for leaf in range(9)),
        offload_optimizer="nvme",
        pipeline_read=True,
        pipeline_write=True,
        sub_group=64,
        chunk=32,
    ),
    # many windows and overflows, two bad leaves in a step, and good steps after each; an evaluation comes right after a
    # bad step, and one between a micro-step that alone uses a block and the one that ends the step
    "long run in fp16": Scenario(
        model=Odd(width=3, hidden=(2, 7), routed=True, routes="micro_steps", scalar=True),
        dtype="fp16",
        steps=14,
        accumulation=2,
        chunk=32,
        optimizer=Optimizer(name="adam", lr=1e-2, second_group=True),
        loss_scale=LossScale(initial_power=4, window=4, hysteresis=4),
        poison=((1, 0), (1, 2), *((step, 1) for step in (2, 3, 5, 6))),
        reads=(Read("evaluation", 6, -1), Read("evaluation", 9, 1), Read("optimizer_state", 11, 1)),
    ),
    # skipped steps by themselves, in a row and with one good step between them, and schedules that go on meanwhile
    "long run in fp32": Scenario(
        model=Odd(width=5, hidden=(7, 2), scalar=True, transposed=True, buffers=True),
        world=3,
        steps=14,
        accumulation=2,
        chunk=32,
        clip=0.5,
        optimizer=Optimizer(lr=1e-2, weight_decay=0.1, second_group=True),
        lr_factors=(0.25, 0.5, 1.0, 2.0, 0.5),
        weight_decay_factors=(1.0, 0.0, 2.0),
        momentum_factors=(0.5, 1.0, 0.25),
        eps_factors=(1.0, 1.0, 2.0**20, 0.25),
        poison=((1, 0), (3, 5), (5, 2), (6, 3), (7, 4), (10, 1)),
        poison_by="nan",
    ),
    # an accumulator becomes -0 by underflow, and has no contribution in the next micro-step
    "underflow in the accumulator": Scenario(
        model=Odd(width=1, hidden=(400,), stopped=True, routes="micro_steps"),
        dtype="bf16",
        steps=3,  # only the last step's gradients are recorded, and in it the third micro-step rests
        micro_batch=1,
        accumulation=3,
        schedule="micro_step",
        accumulator_dtype="fp16",
        chunk=32,
        persistence=50,
        optimizer=Optimizer(name="sgd", lr=0.1),
    ),
    # under autocast the two forwards of a micro-step share their casts of the weights, and so a 16-bit sum of
    # gradients; those of an evaluation just before the update are no longer right after it
    "autocast over two forwards": Scenario(
        model=Odd(width=5, hidden=(7, 2), tied=True, functional=True),
        steps=2,
        accumulation=2,
        chunk=32,
        autocast=True,
        forwards="two",
        optimizer=Optimizer(lr=1e-2),
        reads=(Read("evaluation", 0, 2), Read("evaluation", 1, 1)),
    ),
    # a counter of micro-steps beyond eight, with an evaluation among the last, after a step of three; SGD's momentum is
    # scheduled
    "many micro-steps": Scenario(
        model=Odd(width=5, hidden=(7, 2), tied=True, frozen=True, buffers=True),
        steps=2,
        micro_batch=1,
        accumulation=17,
        short_steps=((0, 14),),
        chunk=32,
        optimizer=Optimizer(name="sgd", lr=0.1),
        momentum_factors=(1.0, 0.5),
        reads=(Read("evaluation", 1, 16), Read("optimizer_state", 1, 9)),
    ),
    # accumulation, skipped steps, short ones and a block that some steps do not use, on uneven shards; Adagrad's decay
    # of the rate changes, its weight decay too, and its sums are saved and loaded; states are read before the update of
    # a short step, and after it
    "long run on three ranks": Scenario(
        model=Odd(width=5, hidden=(7, 3), routed=True, routes="steps", buffers=True, tied=True, frozen=True),
        world=3,
        dtype="bf16",
        steps=8,
        accumulation=2,
        short_steps=((2, 1), (7, 1)),
        chunk=32,
        clip=0.05,
        persistence=6,
        max_live=200,
        optimizer=Optimizer(name="adagrad", lr=0.1, lr_decay=0.5, weight_decay=0.1, second_group=True),
        weight_decay_factors=(1.0, 0.0, 2.0),
        resumes=(5,),
        momentum_factors=(1.0, 0.25),
        offload_optimizer="nvme",
        offload_param="cpu",
        sub_group=40,
        buffer_size=8192,
        poison=((2, 1), (3, 5), (6, 0)),
        reads=(
            Read("gradients", 4, 2),
            Read("evaluation", 5, 1),
            Read("evaluation", 5, 2),
            Read("optimizer_state", 6, -1),
            Read("parameters", 7, 1),
            Read("optimizer_state", 7, 1),
        ),
    ),
}

#: The first update is a large one; the others are small, so that the weights keep their size.
_GROWN = Scenario(
    model=Odd(width=5, hidden=(7, 2), norm=False),
    world=3,
    dtype="bf16",
    steps=5,
    accumulation=2,
    chunk=32,
    optimizer=Optimizer(name="adam", lr=2.0),
    lr_factors=(1.0, 0.001),
    poison=((3, 1),),
)
#: The fields of some that an engine must offer: one that looks for no overflow would train on with it.
REQUIRED = {
    "overflow on the wire": ("poison",),
    "overflow in the accumulator": ("poison",),
    "overflow at the end of a backward": ("poison",),
    "overflow that the client takes away": ("dtype", "loss_scale", "gradient_edits"),
    "replicas of the shards": ("replicate", "clip"),
    "growth over short steps": ("dtype", "loss_scale"),
    "least scale after a load": ("poison",),
    "edits after a load on three ranks": ("resumes", "edits"),
    "shards in groups": ("settings", "resumes"),
}
#: Those that take long: the share of the draws of each. It makes two draws by default, which a verdict needs.
SHARES = {"hundreds of steps": 0.05, "hundreds of leaves": 0.05}
#: Those of engines that promise the contract's bits: other norms are fp32 numbers, whose squares overflow, and some
#: engines divide before they send.
OF_BITS = ("large gradients", "overflow of fp32 on the wire")
#: Those in which others are held at stage 0 alone: some engines that shard freeze a unit as a whole.
AT_STAGE_0 = ("biases alone", "first layer at rest")

RARE_VALUES |= {
    # two short steps in a row, three saves to one directory, and an edit between two evaluations without a step between
    "short steps and saves in a row": Scenario(
        model=Odd(width=5, hidden=(7, 3), scalar=True),
        steps=5,
        accumulation=3,
        short_steps=((3, 1), (4, 2)),
        resumes=(1, 2, 3),
        chunk=32,
        edits=(3, 4),  # the first one just before a save, or just after the load
        reads=(Read("evaluation", 3, -1), Read("evaluation", 4, 0)),
    ),
    # overflows use up a hysteresis of three and meet the least scale, which is below one; good steps follow
    "least scale after a hysteresis": Scenario(
        model=Odd(width=3, hidden=(2, 7)),
        dtype="fp16",
        steps=7,
        chunk=32,
        loss_scale=LossScale(initial_power=0, window=2, hysteresis=3, minimum=0.5),
        poison=tuple((step, 0) for step in range(5)),
    ),
    # more steps than any draw of an engine without a promise of bits has: the rate changes in each, the decay is zero
    # when a new engine loads, and stays so, and the names of the two checkpoints have one digit and two
    "twenty steps": Scenario(
        model=Odd(width=3, hidden=(2,)),
        steps=20,
        chunk=32,
        optimizer=Optimizer(name="adam", second_group=True),
        lr_factors=tuple(1 / (1 + step) for step in range(20)),
        weight_decay_factors=(1.0, 1.0, 1.0, 0.0),
        resumes=(9, 11),
    ),
    # in bf16, so that a momentum in the dtype of the weights is none of the saved one
    "twenty steps with momentum": Scenario(
        model=Odd(width=3, hidden=(2,)),
        dtype="bf16",
        steps=20,
        chunk=32,
        optimizer=Optimizer(name="sgd", lr=0.1),
        lr_factors=tuple(1 / (1 + step) for step in range(20)),
        momentum_factors=(1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.5),  # zero over a load, too
        scheduled_by="engine",
        loads_into="same",
        resumes=(9, 11),
    ),
    # three groups of 16-bit parameters whose rows three ranks cannot share evenly: by two calls one after the other, as
    # this seed has it, the client zeroes gradients that it has read, and sets parameters after an evaluation; it goes
    # back to a saved state after another one and an edit
    "changes of a client on three ranks": Scenario(
        model=Odd(width=5, hidden=(7, 3), high=True),
        world=3,
        dtype="bf16",
        steps=4,
        accumulation=2,
        clip=0.05,
        chunk=32,
        optimizer=Optimizer(lr=1e-2, weight_decay=0.1, second_group=True, third_group=True),
        gradient_edits=(1, 2),
        edits=(2, 3),  # the second one just before the save; or after it, and again after the load
        resumes=(3,),
        loads_into="same",
        reads=(Read("gradients", 1, 2), Read("evaluation", 1, -1), Read("evaluation", 3, 0)),
        seed=6,
    ),
    # what a draw has once: a block rests in steps in a row and again later, and the client sets parameters and zeroes
    # gradients in steps in a row; it edits parameters in place, between two readings, beside masters in host memory
    "changes in several steps": Scenario(
        model=Odd(width=5, hidden=(7, 3), scalar=True),
        steps=7,
        accumulation=2,
        chunk=32,
        optimizer=Optimizer(name="adam", lr=1e-2, weight_decay=0.1),
        frozen_steps=(1, 2, 4),
        edits=(2, 3),
        gradient_edits=(4, 5),
        offload_optimizer="cpu",
        reads=(Read("parameters", 1, -1), Read("parameters", 2, 0)),
        seed=3,
    ),
    # weights so large that gradients are finite where they are computed, and too large for fp16 on the wire, or for an
    # accumulator: in some elements, on some ranks, and not in each step
    "overflow on the wire": _GROWN.but(communication_dtype="fp16"),
    # the weights grow until the first gradients are too large: those of a few elements, on some ranks
    "overflow of fp32 on the wire": _GROWN.but(
        dtype="fp32",
        communication_dtype="fp16",
        steps=6,
        accumulation=1,
        optimizer=Optimizer(name="adam", lr=1.2),
        lr_factors=(),
        poison=(),
    ),
    "overflow in the accumulator": _GROWN.but(accumulator_dtype="fp16", schedule="micro_step"),
    # in the first step, or in the second, some gradients overflow under the static scale, and the client makes zeros of
    # all of those, or of none
    "overflow that the client takes away": Scenario(
        model=Odd(width=5, hidden=(1, 1, 1), norm=False),
        dtype="fp16",
        steps=4,
        micro_batch=1,
        chunk=32,
        gradient_edits=(0, 1, 2),
        loss_scale=LossScale(static=2.0**15),
    ),
    # in steps of zeros the scale grows beyond the integers of fp32, and beyond all numbers of fp16
    "large scale": Scenario(
        model=Odd(width=3, hidden=(2,)),
        dtype="fp16",
        steps=8,
        chunk=32,
        zeroed=tuple((step, leaf) for step in range(5) for leaf in range(2)),
        loss_scale=LossScale(initial_power=22, window=1, hysteresis=1),
    ),
    # weights of a thousand: gradients are finite in fp32, and so is the sum of their squares in fp64 alone
    "large gradients": Scenario(
        model=Odd(width=5, hidden=(7, 2), norm=False, activation="relu"),
        steps=3,
        clip=1.0,
        chunk=32,
        optimizer=Optimizer(name="adam", lr=1000.0),
        lr_factors=(1.0, 1e-6),
    ),
    # more updates, good steps after an overflow, and leaves of a step, than a byte counts; the number of leaves is none
    # of bf16
    "hundreds of steps": Scenario(
        model=Odd(width=3, hidden=(2,)),
        dtype="fp16",
        steps=262,
        chunk=32,
        optimizer=Optimizer(name="adam"),
        loss_scale=LossScale(initial_power=3, window=257),
        poison=((1, 0),),
    ),
    "hundreds of leaves": Scenario(
        model=Odd(width=3, hidden=(2,)), world=3, steps=1, micro_batch=1, accumulation=87, chunk=32
    ),
    # in a step that is skipped the first block rests, and in the next one as many other parameters
    "blocks that rest in turns": Scenario(
        model=Odd(width=5, hidden=(4, 4), routed=True, routes="steps"),
        steps=3,
        chunk=32,
        frozen_steps=(0,),
        poison=((0, 0),),
    ),
    **RARE_MODELS,
    **RARE_LOADS,
    **RARE_STEPS,
}

#: More ranks than any draw has, and than a node of eight, and a number of them that divides nothing.
NINE_RANKS = Scenario(
    model=Odd(width=10, hidden=(7, 4), tied=True, scalar=True),
    world=9,
    steps=2,
    accumulation=2,
    chunk=32,
    clip=0.05,
    reduce_bucket=64,
    prefetch_bucket=100,
    optimizer=Optimizer(second_group=True),
)
#: More bytes of gradients than the buckets of 25 MiB have that engines make if nobody gives a size.
LARGE_MODEL = Scenario(
    model=Odd(width=1000, hidden=(2400,), norm=False, activation="relu"),
    steps=1,
    micro_batch=1,
    optimizer=Optimizer(name="sgd", lr=0.1),
)
