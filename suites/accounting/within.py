"""Bytes that no ledger counts: within a call, while an engine is built, saved and closed, and in files."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal
from unittest import mock

import torch.distributed as dist

from zerobench import subjects
from zerobench.bench.ledger import settled
from zerobench.driver import directory_of, draw_batches, model_for, run_step, save, start, wrap
from zerobench.meters import PeakMeter, TrafficMeter, read_so_far, written_so_far
from zerobench.recording import Traffic
from zerobench.scenario import Loads, Scenario
from zerobench.subject import State, Subject
from zerobench.suites.support.own_code import Place, broken, fail
from zerobench.workload.changes import edited, without_gradient
from zerobench.workload.data import held_out

#: A call within which memory is held: the update of a step, or before it an edit or a reading of gradients; or after
#: it evaluations, one after the other, a save, a load, an edit of parameters, or readings, one after the other.
Within = Literal[
    "update",
    "edit of gradients",
    "reading of gradients",
    "evaluation",
    "save",
    "load",
    "edit",
    "reading",
]
_BEFORE_THE_UPDATE: tuple[Within, ...] = "update", "edit of gradients", "reading of gradients"

_Make = Callable[[Subject, Scenario, Path, State], object]


def most_within(group: dist.ProcessGroup, subject: str, scenario: Scenario, call: Within) -> int:
    """One rank's part: the most bytes that the allocator adds within a call of the second step.

    The meter counts from before the engine is built, so the same training is metered again, up to the call.
    """
    return _peak(group, subject, scenario, call, _CALLS[call]) - _peak(group, subject, scenario, call, _nothing)


def _peak(group: dist.ProcessGroup, name: str, scenario: Scenario, call: Within, make: _Make) -> int:
    rank = dist.get_rank(group)
    engine_of, values = partial(start, subjects.load(name), scenario, group), edited(scenario, 0)
    with PeakMeter() as peak, closing(engine_of()) as engine, directory_of(group) as directory:
        run_step(engine, scenario, 0, rank)
        for batch in draw_batches(scenario, 1, rank):
            engine.micro_step(batch)
        if call not in _BEFORE_THE_UPDATE:
            engine.step()
        if call == "load":
            engine.save(directory)
        dist.barrier(group)
        peak.restart()
        make(engine, scenario, directory, values)
    return peak.bytes


def _nothing(engine: Subject, scenario: Scenario, directory: Path, values: State) -> None:
    pass


def _read(engine: Subject, scenario: Scenario, directory: Path, values: State) -> None:
    engine.parameters()
    engine.model_parameters()
    engine.optimizer_state()


_CALLS: dict[Within, _Make] = {
    "update": lambda engine, scenario, directory, values: engine.step(),
    "evaluation": lambda engine, scenario, directory, values: [engine.evaluate(held_out(scenario)) for _ in range(3)],
    "save": lambda engine, scenario, directory, values: engine.save(directory),
    "load": lambda engine, scenario, directory, values: engine.load(directory),
    "edit": lambda engine, scenario, directory, values: engine.set_parameters(values),
    "edit of gradients": lambda engine, scenario, directory, values: engine.zero_gradients(list(values)),
    "reading of gradients": lambda engine, scenario, directory, values: engine.gradients(),
    "reading": _read,
}


def most_in_building(group: dist.ProcessGroup, name: str, scenario: Scenario) -> tuple[int, int]:
    """One rank's part: the most bytes that the allocator adds while an engine is built around a model, and the bytes of
    the states that it declares then, without parameters that each rank has whole, as the model has."""
    kind, peaks, declared = subjects.load(name), list[int](), 0
    for builds in (False, True):
        with PeakMeter() as peak:
            model = model_for(kind, scenario, dist.get_rank(group))
            peak.restart()
            if builds:
                with closing(wrap(model, kind, scenario, group)) as engine:
                    states = engine.resident()
                    new = states if scenario.placement.parameters else {**states, "parameters": []}
                    declared = sum(tensor.nbytes for each in new.values() for tensor in each)
        peaks.append(peak.bytes)
    return peaks[1] - peaks[0], declared


def written_between_steps(group: dist.ProcessGroup, name: str, scenario: Scenario) -> int | None:
    """One rank's part: the bytes that it writes, to files or others, in an evaluation and readings after a step, and in
    the update of the next step if it is skipped; None if the kernel does not count them."""
    with directory_of(group) as directory:
        one = scenario.but(nvme_path=str(directory))
        with closing(start(subjects.load(name), one, group)) as engine:
            run_step(engine, one, 0, dist.get_rank(group))
            before = written_so_far()
            engine.evaluate(held_out(one))
            _read(engine, one, directory, {})
            after = written_so_far()
            for batch in draw_batches(one, 1, dist.get_rank(group)) if one.bad_steps else ():
                engine.micro_step(batch)
            ready = written_so_far()
            if one.bad_steps:
                engine.step()
            updated = written_so_far()
    if before is None or after is None or ready is None or updated is None:
        return None
    return after - before + updated - ready


def read_in_load(group: dist.ProcessGroup, name: str, scenario: Scenario) -> int | None:
    """One rank's part: the bytes that it reads while it loads what it has saved after a step; None if the kernel does
    not count them."""
    with closing(start(subjects.load(name), scenario, group)) as engine, directory_of(group) as directory:
        run_step(engine, scenario, 0, dist.get_rank(group))
        engine.save(directory)
        before = read_so_far()
        engine.load(directory)
        after = read_so_far()
    return None if before is None or after is None else after - before


def received(group: dist.ProcessGroup, name: str, scenario: Scenario, saves: bool) -> tuple[int, int, int, int]:
    """One rank's part: bytes received while an engine is built, and while it saves after a step; and the bytes in the
    files of all ranks after that save, and after one more of the same state."""
    rank = dist.get_rank(group)
    with TrafficMeter() as building:
        engine = start(subjects.load(name), scenario, group)
    with closing(engine), directory_of(group) if saves else nullcontext(Path()) as directory:
        run_step(engine, scenario, 0, rank)
        with TrafficMeter() as saving:
            if saves:
                engine.save(directory)
        once = twice = 0
        if saves:
            once = _in_directory(directory, group)
            engine.save(directory)
            twice = _in_directory(directory, group)
        return bytes_received(building), bytes_received(saving), once, twice


def received_by_calls(
    group: dist.ProcessGroup, name: str, scenario: Scenario, loads: bool, edits: bool, edits_gradients: bool
) -> dict[str, int]:
    """One rank's part: bytes received while an engine loads what it has saved, or a new one loads a part of it, by
    evaluations after the load, after readings and after an edit, while the client sets parameters, or zeroes gradients,
    by each reading, and while it is closed."""
    values, found = edited(scenario, 0), dict[str, int]()
    engine_of = partial(start, subjects.load(name), scenario, group)
    engine = engine_of()
    with ExitStack() as after_failure, directory_of(group) as directory:
        after_failure.callback(engine.close)

        def meter(what: str, call: Callable[[], object]) -> None:
            with TrafficMeter() as metered:
                call()
            found[what] = bytes_received(metered)

        run_step(engine, scenario, 0, dist.get_rank(group))
        if loads:
            engine.save(directory)
            if scenario.loads_part:
                after_failure.close()
                engine = engine_of()
                after_failure.callback(engine.close)
            meter("loading", lambda: engine.load(directory))
        evaluate = partial(engine.evaluate, held_out(scenario))
        meter("an evaluation", evaluate)
        meter("a reading of parameters", engine.parameters)
        meter("a reading of optimizer state", engine.optimizer_state)
        meter("an evaluation after readings", evaluate)
        if edits:
            meter("an edit", lambda: engine.set_parameters(values))
            meter("an evaluation after an edit", evaluate)
        for batch in draw_batches(scenario, 1, dist.get_rank(group)):
            engine.micro_step(batch)
        meter("a reading of gradients", engine.gradients)
        if edits_gradients:
            meter("an edit of gradients", lambda: engine.zero_gradients(without_gradient(scenario, 0)))
        engine.step()
        meter("a reading of model parameters", engine.model_parameters)
        after_failure.pop_all()
        meter("closing", engine.close)
    return found


def save_for_others(group: dist.ProcessGroup, name: str, scenario: Scenario, directory: Path) -> None:
    """One rank's part: save a state after a step, for a load by other ranks."""
    with closing(start(subjects.load(name), scenario, group)) as engine:
        run_step(engine, scenario, 0, dist.get_rank(group))
        engine.save(directory)


def load_of_others(group: dist.ProcessGroup, name: str, scenario: Scenario, directory: Path) -> tuple[int, int, int]:
    """One rank's part: bytes received, the most bytes that the allocator adds, and bytes read, while a new engine loads
    a state that other ranks have saved; the last are 0 if the kernel does not count them.

    The meter of memory counts from before the engine is built, so that an engine is built again and loads nothing.
    """
    engine_of, peaks = partial(start, subjects.load(name), scenario, group), list[int]()
    for loads in (False, True):
        with PeakMeter() as peak, closing(engine_of()) as engine:
            peak.restart()
            before, _ = moved_so_far()
            with TrafficMeter() as traffic:
                if loads:
                    engine.load(directory)
            after, _ = moved_so_far()
        peaks.append(peak.bytes)
    return bytes_received(traffic), peaks[1] - peaks[0], after - before


def saved(group: dist.ProcessGroup, name: str, scenario: Scenario) -> int:
    """One rank's part: the bytes in the files of a state that is saved after a step; those of all ranks."""
    with closing(start(subjects.load(name), scenario, group)) as engine, directory_of(group) as directory:
        run_step(engine, scenario, 0, dist.get_rank(group))
        engine.save(directory)
        return _in_directory(directory, group)


def _in_directory(directory: Path, group: dist.ProcessGroup) -> int:
    """Bytes in the files of all ranks. A collective."""
    dist.barrier(group)
    size = sum(each.stat().st_size for each in directory.rglob("*") if each.is_file())
    dist.barrier(group)
    return size


def bytes_received(meter: TrafficMeter) -> int:
    """By all collectives."""
    return sum(each.received for each in meter.traffic.values())


def carried(meter: TrafficMeter, world: int) -> int:
    """The most bytes that a rank may write for these collectives: a tenth more than it sends, a kilobyte for each call,
    and a broadcast to each other rank, since ranks pass it on."""
    passed_on = meter.traffic.get("broadcast", Traffic())
    size = sum(each.sent for each in meter.traffic.values()) + (world - 1) * (passed_on.sent + passed_on.received)
    return size + size // 10 + 1024 * sum(each.calls for each in meter.traffic.values())


@dataclass(frozen=True)
class Held:
    """All that a process has: bytes of living tensors, open descriptors, threads, processes that it has started, and
    files in the directory."""

    tensors: int
    descriptors: int
    threads: int
    files: int = 0
    processes: int = 0

    @classmethod
    def now(cls, directory: Path | None = None) -> Held:
        """Of this process, once it no longer changes."""
        tensors = settled()
        open_files, threads = (len(list(Path(f"/proc/self/{kind}").iterdir())) for kind in ("fd", "task"))
        started = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
        files = len(list(directory.iterdir())) if directory else 0
        return cls(tensors, open_files, threads, files, sum(map(len, started)))


def temporary_files_in(directory: Path) -> AbstractContextManager[object]:
    """Within the block Python makes temporary files in this directory, so that they are counted there."""
    return mock.patch.object(tempfile, "tempdir", str(directory))


def held_after_closing(
    group: dist.ProcessGroup, name: str, scenario: Scenario, each: Sequence[tuple[bool, bool]], loads: Sequence[Loads]
) -> tuple[Held, Held]:
    """One rank's part: after the first engine is closed, and after the last of those that follow each other, one for
    each pair of pipelines; each saves, if it can, and loads in turn what ``loads`` says: all that it has saved, or
    before its first step a part of what the one before it has saved.

    Temporary files count, too. The first one may leave memory that libraries allocate once.
    """
    found, kind, parts = list[Held](), subjects.load(name), itertools.cycle(loads)
    with directory_of(group) as directory, directory_of(group) as saved, temporary_files_in(directory):
        for read, write in each:
            one = scenario.but(nvme_path=str(directory), pipeline_read=read, pipeline_write=write)
            one = one.but(loads=next(parts, "all"))
            with closing(start(kind, one, group)) as engine:
                if one.loads != "all":
                    engine.load(saved)
                run_step(engine, one, 0, dist.get_rank(group))
                if loads:
                    save(engine, one, saved, 1)
                if loads and one.loads == "all":
                    engine.load(saved)
            del engine
            dist.barrier(group)
            found.append(Held.now(directory))
    return found[0], found[-1]


def held_after_failures(group: dist.ProcessGroup, name: str, scenario: Scenario) -> tuple[Held, Held]:
    """One rank's part: after the step before the last, and after the last, before which two forwards raise in code of
    the client: before the model's first module has run, and after its last one."""
    rank, last = dist.get_rank(group), scenario.steps - 1
    with closing(start(subjects.load(name), scenario, group)) as engine:
        for index in range(last):
            run_step(engine, scenario, index, rank)
        before = Held.now()
        places: tuple[Place, ...] = ("first", "last")
        for place in places:
            fail(partial(engine.micro_step, broken(draw_batches(scenario, last, rank)[0], place)))
        run_step(engine, scenario, last, rank)
        return before, Held.now()


def files_of_a_step(
    group: dist.ProcessGroup, name: str, scenario: Scenario, loads: bool, edits: bool
) -> tuple[int, int]:
    """One rank's part: bytes in files after the Scenario's steps, after two loads if the engine ``loads``, and after
    four edits if it ``edits``, by the engine's account and by the file system's of this process: those in the directory
    are of all ranks, and rank 0 counts them."""
    rank, values = dist.get_rank(group), [edited(scenario, step) for step in (0, 1)]
    with directory_of(group) as directory, directory_of(group) as saved:
        one = scenario.but(nvme_path=str(directory))
        with closing(start(subjects.load(name), one, group)) as engine:
            for index in range(one.steps):
                run_step(engine, one, index, rank)
            if loads:
                save(engine, one, saved, one.steps)
                engine.load(saved)
                engine.load(saved)
            for each in [*values, *values] if edits else ():
                engine.set_parameters(each)
            dist.barrier(group)
            declared, there = sum(engine.offloaded().files.values()), bytes_in_files(directory, visible=rank == 0)
            dist.barrier(group)
    return declared, there


def moved_so_far() -> tuple[int, int]:
    """Bytes that this process has read and written, to files or others; 0 if the kernel does not count them."""
    return read_so_far() or 0, written_so_far() or 0


def bytes_in_files(directory: Path, *, visible: bool) -> int:
    """Bytes in the files of a directory, and in those that this process has opened and that have no name any more."""
    sizes: dict[int, int] = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            target, found = str(link.readlink()), link.stat()
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
        if target.startswith(str(directory)) and target.endswith(" (deleted)"):
            sizes[found.st_ino] = found.st_size
    if visible:
        named = (path for path in directory.rglob("*") if path.is_file())
        sizes |= {found.st_ino: found.st_size for found in (path.stat() for path in named)}
    return sum(sizes.values())
