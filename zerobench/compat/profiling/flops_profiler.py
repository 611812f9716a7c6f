"""``deepspeed.profiling.flops_profiler``: FLOPs of a forward, counted by torch, with DeepSpeed's names and report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from zerobench.compat.profiling.module_profile import ModuleProfile, ModuleTimes
from zerobench.compat.profiling.quantities import (
    duration_to_string,
    flops_to_string,
    macs_to_string,
    number_to_string,
    params_to_string,
)
from zerobench.compat.profiling.timers import now

_LINE = "{:<70}  {:<8}"
_NOTATIONS = """Notations:
data parallel size (dp_size), model parallel size(mp_size),
number of parameters (params), number of multiply-accumulate operations(MACs),
number of floating-point operations (flops), floating-point operations per second (FLOPS),
fwd latency (forward propagation latency), bwd latency (backward propagation latency),
step (weights update latency), iter latency (sum of fwd, bwd and step latency)
"""
_ORDER = """Each module profile is listed after its name in the following order:
params, percentage of total params, MACs, percentage of total MACs, fwd latency, percentage of total fwd latency,
fwd FLOPS

The latency of a module is that of its forwards, with the modules inside it. Its MACs are those of matrix products,
convolutions and attention, in it or in the modules inside it.
"""


def _rate(label: str, flops: float) -> str:
    return _LINE.format(f"{label}: ", flops_to_string(flops))


class FlopsProfiler:
    """Counts the FLOPs and the time of the model's forwards between start and stop.

    Args:
        model: any module.
        ds_engine: its engine, whose timers the report reads.
        recompute_fwd_factor: the share of the forward that backward runs again.
    """

    def __init__(self, model: nn.Module, ds_engine: Any = None, recompute_fwd_factor: float = 0.0) -> None:
        self.model, self.ds_engine, self.recompute_fwd_factor = model, ds_engine, recompute_fwd_factor
        self.started = self._running = False
        self._counter = FlopCounterMode(display=False)
        self._duration = self._begun = 0.0
        self._times = ModuleTimes()

    def start_profile(self, ignore_list: Any = None) -> None:
        """Begin to count; classes of the list get no times of their own."""
        self.reset_profile()
        self._counter.__enter__()  # type: ignore[no-untyped-call]
        self._times.begin(self.model, ignore_list or ())
        self.started, self._running, self._begun = True, True, now()

    def reset_profile(self) -> None:
        """Forget the numbers; a profile that runs ends."""
        self.stop_profile()
        self._counter, self._duration = FlopCounterMode(display=False), 0.0

    def stop_profile(self) -> None:
        """End, if it runs; the numbers stay until the next start."""
        if self._running:
            self._running, self._duration = False, now() - self._begun
            self._counter.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._times.end()

    def end_profile(self) -> None:
        """Forget the profile."""
        self.stop_profile()
        self.started = False

    @contextlib.contextmanager
    def profiling(self) -> Iterator[None]:
        """Count in the block."""
        self.start_profile()
        try:
            yield
        finally:
            self.stop_profile()

    def get_total_flops(self, as_string: bool = False) -> Any:
        """The FLOPs."""
        found = int(self._counter.get_total_flops())
        return number_to_string(found) if as_string else found

    def get_total_macs(self, as_string: bool = False) -> Any:
        """The multiplications with an addition: half of the FLOPs."""
        found = int(self._counter.get_total_flops()) // 2
        return macs_to_string(found) if as_string else found

    def get_total_duration(self, as_string: bool = False) -> Any:
        """The seconds of the model's forwards; if it had none, those from start to stop."""
        found = self._times.of(self.model) or self._duration
        return duration_to_string(found) if as_string else found

    @property
    def flops(self) -> int:
        """The FLOPs; they stay after the end of the profile."""
        return int(self._counter.get_total_flops())

    @property
    def macs(self) -> int:
        """Half of the FLOPs."""
        return self.flops // 2

    @property
    def params(self) -> int:
        """The model's parameters, whole."""
        return self._of_parameters()

    def get_total_params(self, as_string: bool = False) -> Any:
        """The model's parameters, whole."""
        return params_to_string(self._of_parameters()) if as_string else self._of_parameters()

    def _of_parameters(self) -> int:
        return sum(each.numel() for each in self.model.parameters())

    def print_model_profile(
        self,
        profile_step: int = 1,
        module_depth: int = -1,
        top_modules: int = 1,
        detailed: bool = True,
        output_file: str | Path | None = None,
    ) -> None:
        """Print the report, or write it to a file."""
        if not self.started:
            return
        lines, modules = [*self._summary(profile_step)], self._modules()
        lines.append("\n----------------------------- Aggregated Profile per GPU -----------------------------")
        lines += modules.aggregated(module_depth, top_modules)
        if detailed:
            lines.append("\n------------------------------ Detailed Profile per GPU ------------------------------")
            lines += [_ORDER, modules.detailed()]
        lines.append("-" * 78)
        if output_file:
            Path(output_file).parent.mkdir(parents=True, exist_ok=True)
            Path(output_file).write_text("\n".join(lines) + "\n", encoding="utf-8")
        else:
            print("\n".join(lines), flush=True)

    def print_model_aggregated_profile(self, module_depth: int = -1, top_modules: int = 1) -> None:
        """Print the kinds of modules with the most parameters, FLOPs and seconds, by depth."""
        if self.started:
            print("\n".join(self._modules().aggregated(module_depth, top_modules)), flush=True)

    def _summary(self, profile_step: int) -> Iterator[str]:
        flops = self.get_total_flops()
        yield "\n-------------------------- DeepSpeed Flops Profiler --------------------------"
        yield f"Profile Summary at step {profile_step}:"
        yield _NOTATIONS
        if self.ds_engine is not None:
            yield _LINE.format("world size: ", self.ds_engine.world_size)
            yield _LINE.format("data parallel size: ", self.ds_engine.dp_world_size)
            yield _LINE.format("model parallel size: ", self.ds_engine.mp_world_size)
            yield _LINE.format("batch size per GPU: ", self.ds_engine.train_micro_batch_size_per_gpu())
        parts, known = (1 if self.ds_engine is None else self.ds_engine.mp_world_size), self._of_parameters()
        yield _LINE.format("params per GPU: ", params_to_string(known))
        yield _LINE.format("params of model = params per GPU * mp_size: ", params_to_string(known * parts))
        yield _LINE.format("fwd MACs per GPU: ", macs_to_string(flops // 2))
        yield _LINE.format("fwd flops per GPU: ", number_to_string(flops))
        yield _LINE.format("fwd flops of model = fwd flops per GPU * mp_size: ", number_to_string(flops * parts))
        timed = self.ds_engine is not None and self.ds_engine.wall_clock_breakdown()
        seconds = max(self._spent("fwd") if timed else self.get_total_duration(), 1e-9)
        yield _LINE.format("fwd latency: ", duration_to_string(seconds))
        yield _rate("fwd FLOPS per GPU = fwd flops per GPU / fwd latency", flops / seconds)
        if timed:
            yield from self._of_step(flops, seconds)

    def _spent(self, phase: str) -> float:
        """Seconds, from the engine's timers."""
        return float(self.ds_engine.timers(phase).elapsed(reset=False)) / 1e3

    def _of_step(self, flops: int, forward: float) -> Iterator[str]:
        """The rates of backward and of the step."""
        factor, backward, step = 2 + self.recompute_fwd_factor, max(self._spent("bwd"), 1e-9), self._spent("step")
        both, whole = forward + backward, forward + backward + step
        yield _LINE.format("bwd latency: ", duration_to_string(backward))
        yield _rate(f"bwd FLOPS per GPU = {factor:g} * fwd flops per GPU / bwd latency", factor * flops / backward)
        of_both = f"fwd+bwd FLOPS per GPU = {factor + 1:g} * fwd flops per GPU / (fwd+bwd latency)"
        yield _rate(of_both, (factor + 1) * flops / both)
        yield _LINE.format("step latency: ", duration_to_string(step))
        yield _LINE.format("iter latency: ", duration_to_string(whole))
        yield _rate(f"FLOPS per GPU = {factor + 1:g} * fwd flops per GPU / iter latency", (factor + 1) * flops / whole)
        samples = self.ds_engine.train_micro_batch_size_per_gpu() * self.ds_engine.world_size
        yield _LINE.format("samples/second: ", round(samples / whole, 2))

    def _modules(self) -> ModuleProfile:
        """The values of each module."""
        counted, root = self._counter.get_flop_counts(), type(self.model).__name__
        totals = {name: sum(operations.values()) for name, operations in counted.items()}
        names = [name for name, _ in self.model.named_modules()]
        flops = {name: totals.get(f"{root}.{name}" if name else root, 0) for name in names}
        return ModuleProfile(self.model, {**flops, "": self.get_total_flops()}, self._times.of)


def get_model_profile(
    model: nn.Module,
    input_shape: tuple[int, ...] | None = None,
    args: Any = (),
    kwargs: dict[str, Any] | None = None,
    print_profile: bool = True,
    detailed: bool = True,
    module_depth: int = -1,
    top_modules: int = 1,
    warm_up: int = 1,
    as_string: bool = True,
    output_file: str | Path | None = None,
    ignore_modules: Any = None,
    mode: str = "forward",
) -> tuple[Any, Any, Any]:
    """FLOPs, MACs and parameters of one forward, or of ``generate`` if ``mode`` is so.

    Args:
        model: any module.
        input_shape: of a tensor of ones, in place of ``args``.
        args: of the forward, with ``kwargs``.
        print_profile, detailed, module_depth, top_modules, output_file: of the report.
        warm_up: forwards before it.
        as_string: return words in place of numbers.

    Raises:
        ValueError: there is no input.
    """
    if input_shape is not None:
        like = next(model.parameters())
        args = (torch.ones(input_shape, dtype=like.dtype, device=like.device),)
    if not args and not kwargs:
        raise ValueError("get_model_profile() has no input for the model; give input_shape, args or kwargs")
    model.eval()
    run = model if mode == "forward" else model.generate
    for _ in range(warm_up):
        run(*args, **(kwargs or {}))  # type: ignore[operator]
    profiler = FlopsProfiler(model)
    with profiler.profiling():
        run(*args, **(kwargs or {}))  # type: ignore[operator]
    if print_profile:
        profiler.print_model_profile(warm_up, module_depth, top_modules, detailed, output_file)
    found = (profiler.get_total_flops(as_string), profiler.get_total_macs(as_string))
    profiler.end_profile()
    return *found, profiler.get_total_params(as_string)
