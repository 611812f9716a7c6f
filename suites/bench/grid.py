"""The grid of the benchmark suites, in one place: the models, their settings and the subjects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from zerobench.bench.plan import STAGES_OF_ZERO, plan_cases
from zerobench.model_specs import Gpt, Recompute, Vit
from zerobench.results.identity import COMPUTE_ONLY, Case
from zerobench.scenario import Dtype, OffloadTarget, Scenario
from zerobench.workload.sizes import SIZES

SUBJECTS = ("reference", "torch-ddp", "torch-zero1", "torch-fsdp2", "deepspeed")
#: The offload targets, each beside the others.
OFFLOADS: tuple[OffloadTarget, ...] = ("none", "cpu", "nvme")


@dataclass(frozen=True)
class Point:
    """Subjects measured side by side in alternating steps, with compute-only among them."""

    name: str
    base: Scenario
    subjects: tuple[str, ...] = SUBJECTS
    stages: tuple[int, ...] = STAGES_OF_ZERO
    offload: tuple[OffloadTarget, ...] = ("none",)
    warmup: int = 3

    @property
    def cases(self) -> list[Case]:
        """The cases of the point."""
        return plan_cases(self.base, self.subjects, self.stages, self.offload)


def stages(quick: bool, device: str, world: int) -> list[Point]:
    """Subject x stage x offload x precision x accumulation x recomputation; quick: one change at a time, small."""
    if quick:
        base = _point("nano", device, world, 13)
        offloaded = replace(base, name=f"{base.name}-offload", subjects=("reference",), offload=OFFLOADS[1:])
        return [base, offloaded, *(_point(name, device, world, 13, **changes) for name, changes in _ONE_AT_A_TIME)]
    return [point for name in _MODELS[device] for point in _all(name, device, world)]


_ONE_AT_A_TIME: tuple[tuple[str, dict[str, Any]], ...] = (
    ("nano", {"dtype": "bf16"}),
    ("nano", {"accumulation": 4}),
    ("nano", {"recompute": "non_reentrant"}),
    ("vit-tiny", {}),
)
_MODELS = {"cpu": ("mini", "vit-s"), "cuda": ("gpt2", "vit-b", "vit-1b", "gpt2-xl")}
_DTYPES: dict[str, tuple[Dtype, ...]] = {"cpu": ("fp32", "bf16"), "cuda": ("bf16",)}
#: Too large for all subjects at once, at 16 bytes a parameter each: they are measured in two halves.
_LARGE = ("vit-1b", "gpt2-xl")
#: On one GPU, which shards nothing, each subject is by itself beside compute-only; files would fill a disk that has
#: room for the others' states.
_ALONE_ON_ONE_GPU = ("gpt2-xl",)


def _all(name: str, device: str, world: int) -> Iterator[Point]:
    for dtype, accumulation, recompute in product(_DTYPES[device], (1, 4), _RECOMPUTE):
        changes = {"dtype": dtype, "accumulation": accumulation}
        point = _point(name, device, world, 15, recompute=recompute, **changes)
        if name in _ALONE_ON_ONE_GPU and world == 1:
            yield from _one_at_a_time(point)
            continue
        if name in _LARGE:
            yield replace(point, name=f"{point.name}-reference", subjects=("reference",))
            yield replace(point, name=f"{point.name}-peers", subjects=SUBJECTS[1:], stages=(3,))
        else:
            yield point
        yield from _offloaded(point, name in _LARGE)


def _offloaded(point: Point, large: bool) -> Iterator[Point]:
    """The reference with states off the device. Large states in files have a point for each stage and three steps: a
    drive of 1 GB/s takes 25 seconds for one step of vit-1b."""
    alone = replace(point, subjects=("reference",))
    if not large:
        yield replace(alone, name=f"{point.name}-offload", offload=OFFLOADS[1:])
        return
    yield replace(alone, name=f"{point.name}-cpu", offload=("cpu",))
    short = replace(alone, base=point.base.but(steps=3), warmup=1, offload=("nvme",))
    for stage in STAGES_OF_ZERO[1:]:
        yield replace(short, name=f"{point.name}-nvme-{stage}", stages=(stage,))


def _one_at_a_time(point: Point) -> Iterator[Point]:
    """Points of one engine each: every subject and stage, and the reference at every stage with states on the host."""
    for subject in point.subjects:
        for stage in point.stages if subject == "reference" else (3,):
            yield replace(point, name=f"{point.name}-{subject}-{stage}", subjects=(subject,), stages=(stage,))
    for stage in point.stages:
        yield replace(
            point, name=f"{point.name}-cpu-{stage}", subjects=("reference",), stages=(stage,), offload=("cpu",)
        )


def scaling(quick: bool, device: str, worlds: Sequence[int]) -> list[Point]:
    """The same work for each rank on more and more ranks."""
    name, steps = ("nano", 13) if quick else ("mini" if device == "cpu" else "gpt2", 15)
    return [_point(name, device, world, steps) for world in worlds]


@dataclass(frozen=True)
class Search:
    """For the largest model of a family that a case trains within ``limit`` bytes on each rank."""

    case: Case
    limit: int
    most: int  # layers

    @property
    def name(self) -> str:
        """The display name."""
        return f"{self.case.label} in {self.limit >> 20} MiB"


def searches(quick: bool, device: str, world: int) -> list[Search]:
    """Stage x offload for one shape of GPT, in search of its number of layers; peers beside them."""
    scenario = _capacity_base(quick, device, world)
    subjects, at, targets, limits = _CAPACITY[device, quick]
    found = [case for case in plan_cases(scenario, subjects, at, targets) if case.subject != COMPUTE_ONLY]
    return [Search(case, limit, _MOST_LAYERS) for limit in limits for case in found]


_MOST_LAYERS = 256
#: Bytes on a GPU. The least is for a host of 128 GiB: it has no room for ten times the model that 16 GiB hold without
#: offload.
_LIMITS = 8 << 30, 16 << 30, 32 << 30
#: Subjects, stages, offload targets and bytes on each rank. On a CPU host memory is the device's own.
_CAPACITY: dict[
    tuple[str, bool], tuple[tuple[str, ...], tuple[int, ...], tuple[OffloadTarget, ...], tuple[int, ...]]
] = {
    ("cpu", True): (("reference",), (0, 3), ("none", "nvme"), (96 << 20,)),
    ("cpu", False): (SUBJECTS, STAGES_OF_ZERO, ("none", "nvme"), (512 << 20,)),
    ("cuda", True): (("reference",), (0, 3), ("none", "cpu"), (16 << 30,)),
    ("cuda", False): (("reference", "torch-ddp", "torch-fsdp2"), STAGES_OF_ZERO, OFFLOADS, _LIMITS),
}


def _capacity_base(quick: bool, device: str, world: int) -> Scenario:
    """Small buckets and buffers, and on CUDA recomputed activations, which leave the memory to the model."""
    sub_group = 1 << 18 if device == "cpu" else 1 << 24
    small = Gpt(width=128 if quick else 256, heads=4, context=64)
    large = Gpt(width=4096, heads=32, context=1024, recompute="non_reentrant")
    return Scenario(
        model=small if device == "cpu" else large,
        world=world,
        dtype="fp32" if device == "cpu" else "bf16",
        steps=2,
        micro_batch=1,
        data="text",
        reduce_bucket=4 * sub_group,
        allgather_bucket=4 * sub_group,
        sub_group=sub_group,
        buffer_size=8 * sub_group,
        pipeline_read=True,
        pipeline_write=True,
        device="cpu" if device == "cpu" else "cuda",
    )


_RECOMPUTE: tuple[Recompute, ...] = ("none", "non_reentrant")


def _point(name: str, device: str, world: int, steps: int, *, recompute: Recompute = "none", **changes: Any) -> Point:
    model = replace(SIZES[name], recompute=recompute)
    base = Scenario(
        model=model,
        world=world,
        steps=steps,
        micro_batch=4,
        data="random" if isinstance(model, Vit) else "text",
        device="cuda" if device == "cuda" else "cpu",
        **changes,
    )
    words = [name, base.dtype, f"a{base.accumulation}", recompute.replace("none", ""), f"n{world}"]
    return Point("-".join(filter(None, words)), base)
