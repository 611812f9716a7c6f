"""The parts of the GPU's measurements; each runs in a process of its own and writes its results after every case."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from zerobench.errors import RankFailure, UsageError
from zerobench.machine.files import write_together
from zerobench.suites.bench import grid
from zerobench.suites.bench.gpu import first_contact
from zerobench.suites.bench.kernels.workloads import names, rivals, sizes
from zerobench.suites.bench.runs import Runs

#: Measures one case after another, and yields after each: True if it was measured, False if it failed.
Measure = Callable[[Runs], Iterator[bool]]


@dataclass(frozen=True)
class Part:
    """A part, and its name on the command line and in files."""

    name: str
    measure: Measure


def all_parts(quick: bool, device: str, world: int) -> list[Part]:
    """All parts in the order in which they decide the most: whether the engine is right, then how fast it is."""
    kernels = [Part(f"kernel-{_plain(name)}", partial(_kernel, name, quick)) for name in names(device)]
    points = [Part(f"stages-{point.name}", partial(_stages, point)) for point in grid.stages(quick, device, world)]
    searches = grid.searches(quick, device, world)
    capacity = [Part(f"capacity-{_plain(each.name)}", partial(_capacity, each)) for each in searches]
    return [Part("first-contact", first_contact.measure), *kernels, *points, *capacity]


def _plain(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def _kernel(name: str, quick: bool, runs: Runs) -> Iterator[bool]:
    for n in sizes(quick, runs.device):
        for against in rivals(name, runs.device):
            try:
                runs.kernels.append(runs.kernel(name, n, against)[0])
            except torch.OutOfMemoryError as error:
                runs.progress(f"{name} on {n} elements does not fit: {error}")
                continue
            yield True


def _stages(point: grid.Point, runs: Runs) -> Iterator[bool]:
    for case in point.cases:
        try:
            found = runs.case(point, case)
        except (RankFailure, UsageError) as error:
            runs.progress(f"{case.label}: {error}")
            yield False
            return
        runs.progress(f"{case.label}: {found['verdict']} {found['reason']}")
        yield case.subject != "reference" or found["verdict"] not in ("wrong", "raised", "crashed", "timeout")


def _capacity(search: grid.Search, runs: Runs) -> Iterator[bool]:
    found = runs.fit(search)
    runs.fits.append(found)
    runs.progress(f"{search.name}: {found['verdict']}, {found['layers']} layers {found['reason']}")
    yield search.case.subject != "reference" or found["verdict"] == "measured"


def run(part: Part, device: str, folder: Path, command: str, judges: bool = True) -> bool:
    """Measure a part; the results so far are in ``folder`` after every case. Whether all cases were measured.

    A part of which nothing is missing leaves the file ``NAME.done``, so that a later call leaves it out.
    """
    begin = time.monotonic()
    runs, good = (
        Runs(device, lambda what: print(f"{time.monotonic() - begin:4.0f} s: {what}", flush=True), judges),
        True,
    )

    def save() -> None:
        document = runs.document(command)
        if document is not None:
            write_together(folder, {f"{part.name}.json": json.dumps(document, indent=1)})

    runs.saves = save
    try:
        for measured in part.measure(runs):
            good &= measured
            save()
    finally:
        runs.close()
    if good:
        write_together(folder, {f"{part.name}.done": ""})
    return good
