"""The grid of the benchmark suites, in one place: which models, in which settings, with which subjects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from zerobench.bench import STAGES_OF_ZERO, Measured, rows
from zerobench.models import SIZES
from zerobench.scenario import Dtype, Offload, Recompute, Scenario, Vit

SUBJECTS = ("reference", "torch-ddp", "torch-zero1", "torch-fsdp2", "deepspeed")
#: Where owners keep what they own, each beside the others.
OFFLOADS: tuple[Offload, ...] = ("none", "cpu", "nvme")


@dataclass(frozen=True)
class Point:
    """Subjects that are measured side by side, a step of each by turns, with compute-only among them."""

    name: str
    base: Scenario
    subjects: tuple[str, ...] = SUBJECTS
    stages: tuple[int, ...] = STAGES_OF_ZERO
    offload: tuple[Offload, ...] = ("none",)
    warmup: int = 3

    @property
    def rows(self) -> list[Measured]:
        """What is measured at the point."""
        return rows(self.base, self.subjects, self.stages, self.offload)


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
#: Too large for all subjects at once on one GPU, at 16 bytes a parameter each: they take turns in two halves.
_LARGE = ("vit-1b", "gpt2-xl")


def _all(name: str, device: str, world: int) -> Iterator[Point]:
    for dtype, accumulation, recompute in product(_DTYPES[device], (1, 4), _RECOMPUTE):
        changes = {"dtype": dtype, "accumulation": accumulation}
        point = _point(name, device, world, 15, recompute=recompute, **changes)
        if name in _LARGE:
            yield replace(point, name=f"{point.name}-reference", subjects=("reference",))
            yield replace(point, name=f"{point.name}-peers", subjects=SUBJECTS[1:], stages=(3,))
        else:
            yield point
        yield replace(point, name=f"{point.name}-offload", subjects=("reference",), offload=OFFLOADS[1:])


def scaling(quick: bool, device: str, worlds: Sequence[int]) -> list[Point]:
    """The same work for each rank on more and more ranks."""
    name, steps = ("nano", 13) if quick else ("mini" if device == "cpu" else "gpt2", 15)
    return [_point(name, device, world, steps) for world in worlds]


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
