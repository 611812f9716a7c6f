"""The fixed Scenarios of the accounting suite, each named after its subject."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import get_args

from zerobench.model_specs import Gpt, Odd, Recompute, Vit
from zerobench.scenario import Optimizer, Scenario

GPT = Gpt(vocab=61, context=8, width=20, layers=3, heads=2)
VIT = Vit(image=12, patch=4, classes=7, width=20, layers=2, heads=2)
ODD = Odd(
    tied=True,
    functional=True,
    reused=True,
    frozen=True,
    unused=True,
    routed=True,
    scalar=True,
    tiny=True,
    empty=True,
    transposed=True,
    buffers=True,
)
#: No peculiarity that some engine refuses, and enough blocks for buckets and prefetching to matter.
DEEP = Odd(width=9, hidden=(7, 3, 40, 7, 16))

_gpt = Scenario(model=GPT, chunk=64, prefetch_bucket=0)
_vit = Scenario(model=VIT, chunk=64, prefetch_bucket=0)
_odd = Scenario(model=ODD, chunk=32, prefetch_bucket=0, optimizer=Optimizer(name="sgd"))
_deep = Scenario(model=DEEP, chunk=32, prefetch_bucket=0)

_MODELS = {
    "gpt": _gpt,
    "gpt-bf16": _gpt.but(dtype="bf16", optimizer=Optimizer(name="adam", second_group=True)),
    "vit": _vit,
    "odd": _odd,
    "odd-bf16": _odd.but(dtype="bf16", accumulator_dtype="bf16", optimizer=Optimizer(name="sgd", momentum=0.0)),
}

#: Every stage, world size, precision and kind of model; below stage 3 nothing is persistent.
STATES: dict[str, Scenario] = {
    **{
        f"{name}-stage{stage}-{world}ranks": base.but(stage=stage, world=world)
        for (name, base), stage, world in product(_MODELS.items(), range(4), range(1, 5))
    },
    **{
        f"{name}-stage3-persistence{limit}": base.but(stage=3, world=3, persistence=limit)
        for (name, base), limit in product(_MODELS.items(), (30, 100_000))
    },
}

_SETTINGS: dict[str, Scenario] = {
    "gpt": _gpt,
    "gpt-tied": _gpt.but(model=replace(GPT, tied=True)),
    "vit": _vit,
    "accumulation": _deep.but(accumulation=3),
    "small-buckets": _deep.but(reduce_bucket=64, allgather_bucket=100, accumulation=2),
    # of three ranks a bucket carries exactly two chunks of each
    "buckets-exactly": _deep.but(reduce_bucket=192, allgather_bucket=192),
    "bf16": _deep.but(dtype="bf16", accumulator_dtype="bf16"),
    "communication": _deep.but(dtype="bf16", communication_dtype="fp32"),
    "no-overlap": _deep.but(overlap=False, accumulation=2),
    "odd": _odd.but(accumulation=2),
    "dropout": _deep.but(model=Odd(width=9, hidden=(7, 3), dropout=0.25)),
    "clip": _deep.but(clip=0.1, optimizer=Optimizer(second_group=True)),
}

_STAGE_3: dict[str, Scenario] = {
    "non-reentrant": _gpt.but(model=replace(GPT, recompute="non_reentrant")),
    "vit-reentrant": _vit.but(model=replace(VIT, recompute="reentrant")),
    "vit-prefetch": _vit.but(model=replace(VIT, recompute="non_reentrant"), prefetch_bucket=6000),
    "reentrant": _deep.but(model=replace(DEEP, recompute="reentrant"), accumulation=2),
    "odd-non-reentrant": _odd.but(model=Odd(width=9, hidden=(7, 3, 40), frozen=True, recompute="non_reentrant")),
    **{
        f"repeated-{recompute}": _odd.but(
            model=Odd(width=9, hidden=(7, 3), tied_blocks=True, part_alone=True, frozen=True, recompute=recompute),
            accumulation=2,
        )
        for recompute in get_args(Recompute)
    },
    **{
        f"structure-{recompute}": _odd.but(
            model=Odd(
                width=9,
                hidden=(7, 3, 5),
                listed_twice=True,
                nested=True,
                no_grad=True,
                stopped=True,
                structured=True,
                in_place=True,
                recompute=recompute,
            ),
            accumulation=2,
        )
        for recompute in get_args(Recompute)
    },
    "frozen-neighbours": _odd.but(model=Odd(width=9, hidden=(7, 3, 40), frozen=True), accumulation=2),
    "persistence": _deep.but(persistence=30, accumulation=2),
    "all-persistent": _deep.but(persistence=100_000),
    "prefetch": _deep.but(prefetch_bucket=600, accumulation=2),
    "prefetch-all": _gpt.but(prefetch_bucket=50_000_000),
    "prefetch-less-than-a-unit": _deep.but(prefetch_bucket=1, accumulation=2),
    "max-live": _deep.but(max_live=1500, accumulation=2),
    # on three ranks as many elements as some of the padded units have
    "max-live-exactly": _deep.but(max_live=480),
    "prefetch-exactly": _deep.but(prefetch_bucket=1440),
    "routed-prefetch": _deep.but(model=Odd(width=9, hidden=(7, 3), routed=True, tiny=True), prefetch_bucket=500),
    # a linear layer saves no parameter, and the gradient of its weight is complete first
    "autocast": _odd.but(model=Odd(listed_twice=True, routed=True, scalar=True), autocast=True, prefetch_bucket=14),
    "autocast-persistence": _odd.but(model=Odd(width=16), autocast=True, persistence=63, reduce_bucket=377),
    "autocast-gpt": _gpt.but(autocast=True, prefetch_bucket=6000),
}

#: Every stage under each setting that changes the traffic; then the settings of stage 3 alone.
TRAFFIC: dict[str, Scenario] = {
    **{
        f"{name}-stage{stage}": base.but(stage=stage, world=3)
        for (name, base), stage in product(_SETTINGS.items(), range(4))
    },
    **{
        f"every-micro-step-stage{stage}": _deep.but(stage=stage, world=3, accumulation=3, schedule="micro_step")
        for stage in (0, 1)
    },
    **{
        f"gpt-stage{stage}-{world}ranks": _gpt.but(stage=stage, world=world)
        for stage, world in product(range(4), (1, 2, 4))
    },
    **{f"{name}-stage3": base.but(stage=3, world=3) for name, base in _STAGE_3.items()},
}

#: For tensors that stay alive and tensors that grow, with accumulation, and with recomputation if parameters come and
#: go. All steps take one path, because a parameter that is used late gets its state late.
_same_path = _odd.but(model=replace(ODD, routed=False), world=2, accumulation=2)
LIVING: dict[str, Scenario] = {
    **{f"odd-stage{stage}": _same_path.but(stage=stage) for stage in range(4)},
    "gpt-stage3-bf16-non-reentrant": _STAGE_3["non-reentrant"].but(stage=3, world=2, accumulation=2, dtype="bf16"),
    **{f"odd-stage3-{each}": _same_path.but(stage=3, forwards=each) for each in ("two", "dropped", "no_grad")},
    "odd-stage2-dropped": _same_path.but(stage=2, forwards="dropped"),
}

#: Stage 3 with so many units that all of them together exceed the bound.
SHARDED: dict[str, Scenario] = {
    "gpt": _gpt.but(stage=3, world=2, model=replace(GPT, layers=6)),
    "gpt-non-reentrant": _STAGE_3["non-reentrant"].but(stage=3, world=3),
    "vit": _vit.but(stage=3, world=2, model=replace(VIT, layers=6)),
    "deep": _deep.but(stage=3, world=2, accumulation=2),
    "deep-reentrant": _STAGE_3["reentrant"].but(stage=3, world=2),
    "persistence": _deep.but(stage=3, world=2, persistence=30),
    "prefetch": _deep.but(stage=3, world=4, prefetch_bucket=600),
    "bf16": _deep.but(stage=3, world=3, dtype="bf16"),
}

#: 16-bit training in which nothing is padded, and states in sub-groups of which several fit into a shard.
HALF = _gpt.but(world=2, dtype="bf16", model=replace(GPT, width=32, vocab=64), sub_group=1024, buffer_size=16_384)

_offloaded = _deep.but(world=3, buffer_size=4096, sub_group=500)
_OFFLOAD: dict[str, Scenario] = {
    "cpu": _offloaded.but(offload_optimizer="cpu"),
    "cpu-bf16": _offloaded.but(offload_optimizer="cpu", dtype="bf16", accumulation=2),
    "nvme": _offloaded.but(offload_optimizer="nvme", accumulation=2),
    "nvme-pipelined": _offloaded.but(offload_optimizer="nvme", dtype="bf16", pipeline_read=True, pipeline_write=True),
    "half": _offloaded.but(offload_optimizer="cpu", offload_ratio=0.5),
}

#: Every medium for each state, at every stage that has owners; then parameters, which only stage 3 shards.
OFFLOAD: dict[str, Scenario] = {
    **{f"{name}-stage{stage}": base.but(stage=stage) for (name, base), stage in product(_OFFLOAD.items(), (1, 2, 3))},
    **{
        f"parameters-{place}-{name}-stage3": base.but(stage=3, offload_param=place, persistence=30, prefetch_bucket=600)
        for (name, base), place in product({**_OFFLOAD, "none": _offloaded}.items(), ("cpu", "nvme"))
    },
    "max-in-cpu-stage3": _offloaded.but(stage=3, offload_param="nvme", max_in_cpu=300),
    "one-rank-stage2": _offloaded.but(stage=2, world=1, dtype="bf16", offload_optimizer="cpu"),
    "odd-stage3": _odd.but(stage=3, world=3, offload_param="nvme", offload_optimizer="nvme", buffer_size=4096),
}
LIVING["gpt-stage3-offloaded"] = LIVING["gpt-stage3-bf16-non-reentrant"].but(
    offload_optimizer="cpu", offload_param="nvme"
)
