"""``deepspeed.profiling.flops_profiler``: FLOPs of a forward, counted by torch, with DeepSpeed's names and report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from zerobench.compat.quantities import (
    duration_to_string,
    flops_to_string,
    macs_to_string,
    number_to_string,
    params_to_string,
)
from zerobench.compat.timers import now

_LINE = "{:<70}  {:<8}"


def _scaled(number: float, unit: str = "") -> str:
    """A number with a letter for its magnitude, such as ``1.5 K``."""
    for letter, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= size:
            return f"{number / size:.2f} {letter}{unit}"
    return f"{number:.2f} {unit}".rstrip()


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
        self.started = False
        self._counter = FlopCounterMode(display=False)
        self._duration = self._begun = 0.0

    def start_profile(self, ignore_list: Any = None) -> None:
        """Begin to count."""
        self._counter = FlopCounterMode(display=False)
        self._counter.__enter__()  # type: ignore[no-untyped-call]
        self.started, self._duration, self._begun = True, 0.0, now()

    def stop_profile(self) -> None:
        """End; the numbers stay until the next start."""
        self._duration = now() - self._begun
        self._counter.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def end_profile(self) -> None:
        """Forget the profile."""
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
        """The seconds from start to stop."""
        return duration_to_string(self._duration) if as_string else self._duration

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
        lines = [*self._summary(profile_step), *self._by_depth(module_depth, top_modules)]
        if detailed:
            lines += self._by_module()
        lines.append("-" * 78)
        if output_file:
            Path(output_file).parent.mkdir(parents=True, exist_ok=True)
            Path(output_file).write_text("\n".join(lines) + "\n", encoding="utf-8")
        else:
            print("\n".join(lines), flush=True)

    def _summary(self, profile_step: int) -> Iterator[str]:
        flops = self.get_total_flops()
        yield "\n-------------------------- DeepSpeed Flops Profiler --------------------------"
        yield f"Profile Summary at step {profile_step}:"
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
        seconds = max(self._spent("fwd") if timed else self._duration, 1e-9)
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

    def _of_modules(self) -> dict[str, int]:
        """The FLOPs of each module by its name in the model; the model's own name is empty."""
        counted = self._counter.get_flop_counts()
        root = type(self.model).__name__
        totals = {name: sum(operations.values()) for name, operations in counted.items()}
        names = [name for name, _ in self.model.named_modules()]
        return {name: totals.get(f"{root}.{name}" if name else root, 0) for name in names}

    def _by_depth(self, module_depth: int, top_modules: int) -> Iterator[str]:
        """The kinds of modules with the most parameters and FLOPs, for each depth down to ``module_depth``."""
        of_modules, kinds = self._of_modules(), dict(self.model.named_modules())
        depths = {name: name.count(".") + 1 if name else 0 for name in of_modules}
        deepest = max(depths.values()) if module_depth == -1 else module_depth
        yield "\n----------------------------- Aggregated Profile per GPU -----------------------------"
        yield f"Top {top_modules} modules in terms of params or MACs at different model depths:"
        for depth in range(deepest + 1):
            found: dict[str, list[int]] = {}
            for name in (name for name, each in depths.items() if each == depth):
                both = found.setdefault(type(kinds[name]).__name__, [0, 0])
                both[0] += sum(each.numel() for each in kinds[name].parameters())
                both[1] += of_modules[name] // 2
            yield f"depth {depth}:"
            for title, place, words in (("params     ", 0, params_to_string), ("MACs       ", 1, macs_to_string)):
                most = sorted(found.items(), key=lambda each: -each[1][place])[:top_modules]
                yield f"    {title} - { {kind: words(both[place]) for kind, both in most} }"

    def _by_module(self) -> Iterator[str]:
        """A line for each module: parameters and FLOPs with their shares."""
        total, parameters = max(self.get_total_flops(), 1), max(self.get_total_params(), 1)
        of_modules = self._of_modules()
        yield "\n------------------------------ Detailed Profile per GPU ------------------------------"
        for name, module in self.model.named_modules():
            own, flops = sum(each.numel() for each in module.parameters()), of_modules[name]
            yield (
                f"{'  ' * (name.count('.') + bool(name))}({name.rpartition('.')[2]}): {type(module).__name__}("
                f"{_scaled(own)} = {100 * own / parameters:.2f}% Params, "
                f"{_scaled(flops // 2, 'MACs')} = {100 * flops / total:.2f}% MACs)"
            )


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
