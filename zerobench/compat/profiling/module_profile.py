"""Parameters, FLOPs and times of each module of a profile, printed as DeepSpeed prints them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from zerobench.compat.profiling.quantities import duration_to_string, flops_to_string, macs_to_string, params_to_string
from zerobench.compat.profiling.timers import now


class ModuleTimes:
    """Seconds of each module's forwards, with those of the modules inside it.

    Hooks take the time from :meth:`begin` to :meth:`end`; the seconds stay until the next :meth:`begin`.
    """

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._seconds: dict[nn.Module, float] = {}
        self._begun: dict[nn.Module, list[float]] = {}

    def begin(self, model: nn.Module, ignored: Iterable[type[nn.Module]] = ()) -> None:
        """Take times of each module whose class is not ignored."""
        self.end()
        self._seconds, self._begun = {}, {}
        for module in model.modules():
            if type(module) not in tuple(ignored):
                self._handles.append(module.register_forward_pre_hook(self._start, prepend=True))
                self._handles.append(module.register_forward_hook(self._stop, always_call=True))

    def _start(self, module: nn.Module, inputs: Any) -> None:
        self._begun.setdefault(module, []).append(now())

    def _stop(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        self._seconds[module] = self._seconds.get(module, 0.0) + now() - self._begun[module].pop()

    def end(self) -> None:
        """Remove the hooks."""
        for each in self._handles:
            each.remove()
        self._handles.clear()

    def of(self, module: nn.Module) -> float:
        """The seconds of a module; of one without forwards, such as a ModuleList, those of the modules inside it."""
        if module in self._seconds:
            return self._seconds[module]
        return sum(self.of(each) for each in module.children())


class ModuleProfile:
    """The values of each module, and the lines that show them.

    Args:
        model: the profiled module.
        flops: by name of a module; the model's own name is empty.
        seconds: those of a module.
    """

    def __init__(self, model: nn.Module, flops: dict[str, int], seconds: Callable[[nn.Module], float]) -> None:
        self._model, self._flops, self._seconds = model, flops, seconds

    def aggregated(self, module_depth: int, top_modules: int) -> Iterator[str]:
        """The kinds of modules with the most parameters, FLOPs and seconds, for each depth down to ``module_depth``."""
        kinds = dict(self._model.named_modules())
        depths = {name: name.count(".") + 1 if name else 0 for name in kinds}
        deepest = max(depths.values()) if module_depth == -1 else module_depth
        yield f"Top {top_modules} modules in terms of params, MACs or fwd latency at different model depths:"
        for depth in range(deepest + 1):
            found: dict[str, list[float]] = {}
            for name in (name for name, each in depths.items() if each == depth):
                values = found.setdefault(type(kinds[name]).__name__, [0, 0, 0])
                own = (_parameters(kinds[name]), self._flops[name] // 2, self._seconds(kinds[name]))
                values[:] = (sum(each) for each in zip(values, own, strict=True))
            yield f"depth {depth}:"
            for place, (title, words) in enumerate(_QUANTITIES.items()):
                most = sorted(found.items(), key=lambda each: -each[1][place])[:top_modules]
                yield f"    {title} - { {kind: words(values[place]) for kind, values in most} }"

    def detailed(self) -> str:
        """The model as Python prints it; each module begins with its values and their shares."""
        named = dict(self._model.named_modules())
        wrapped = {
            module: functools.partial(self._described, name, module.extra_repr) for name, module in named.items()
        }
        try:
            for module, description in wrapped.items():
                module.extra_repr = description
            return repr(self._model)
        finally:
            for module in wrapped:
                module.__dict__.pop("extra_repr", None)

    def _described(self, name: str, before: Callable[[], str]) -> str:
        module = self._model.get_submodule(name)
        parameters, flops, seconds = _parameters(module), self._flops[name], self._seconds(module)
        values = [
            f"{params_to_string(parameters)} = {_share(parameters, _parameters(self._model))}% Params",
            f"{macs_to_string(flops // 2)} = {_share(flops, self._flops[''])}% MACs",
            f"{duration_to_string(seconds)} = {_share(seconds, self._seconds(self._model))}% latency",
            flops_to_string(flops / seconds if seconds else 0),
        ]
        return ", ".join([*values, *filter(None, [before()])])


def _share(part: float, whole: float) -> str:
    return f"{round(100 * part / whole, 2) if whole else 0:g}"


def _parameters(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


_QUANTITIES: dict[str, Callable[[float], str]] = {
    "params     ": params_to_string,
    "MACs       ": macs_to_string,
    "fwd latency": duration_to_string,
}
