"""Engines that go wrong on a part of a model that few models have (zerobench/workload/models/rare_parts.py).

Class of escape: a model that is never drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.scenario import Scenario
from zerobench.subject import Batch
from zerobench.suites.meta.mutants.values import LATER, ValueMutant


class _OfParts(ValueMutant):
    rare = "rare parts of a model"
    points_at = LATER

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        self.change(model)
        super().__init__(model, scenario, group)

    def change(self, model: nn.Module) -> None:
        """Take the client's model over in a wrong way."""


class CastsWideBuffers(_OfParts):
    """Buffers of fp64 become fp32."""

    def change(self, model: nn.Module) -> None:
        for buffer in model.buffers():
            if buffer.dtype == torch.float64:
                buffer.data = buffer.data.float()


class UntiesAThirdName(_OfParts):
    """Of a weight with several names, one from the third on becomes a weight of its own."""

    def change(self, model: nn.Module) -> None:
        for module, name in list(_third_names(model)):
            own = nn.Parameter(module.get_parameter(name).detach().clone())
            setattr(module, name, own.requires_grad_(False))


class AddsInTheOrderOfMemory(_OfParts):
    """A gradient of a weight whose channels come last is taken for one of the usual order."""

    def change(self, model: nn.Module) -> None:
        for p in model.parameters():
            if p.dim() == 4 and not p.is_contiguous():
                p.register_hook(_in_the_usual_order)  # type: ignore[no-untyped-call]


class RemovesTheModelsHooks(_OfParts):
    """A load takes the hooks of all modules away, those of the model too, before it adds its own."""

    def load(self, directory: Path) -> None:
        super().load(directory)
        for module in self.model.modules():
            for number, hook in list(module._forward_hooks.items()):
                if hook.__module__.endswith("rare_parts"):
                    del module._forward_hooks[number]


class LoadsNamesWithoutModule(_OfParts):
    """A load removes ``module.`` from the names of a checkpoint, as if a wrapper had put it there."""

    def load(self, directory: Path) -> None:
        super().load(directory)
        values = self.parameters()
        wrapped = {name: name.replace(".module.", ".") for name in values if ".module." in name}
        self.set_parameters({plain: values[name] for name, plain in wrapped.items() if plain in values})


class EvaluatesInTheUsualTruth(_OfParts):
    """A buffer of truth values is one of numbers, all of which count as true, in evaluations."""

    def evaluate(self, batch: Batch) -> Tensor:
        kept = [(buffer, buffer.clone()) for buffer in self.model.buffers() if buffer.dtype == torch.bool]
        for buffer, _ in kept:
            buffer.fill_(True)
        loss = super().evaluate(batch)
        for buffer, values in kept:
            buffer.copy_(values)
        return loss


#: Each is caught by the Scenario that it names in ``rare``.
RARE_PARTS: list[type[_OfParts]] = list(_OfParts.__subclasses__())


def _third_names(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """The modules and names of parameters from their third on."""
    seen: dict[nn.Parameter, int] = {}
    for module in model.modules():
        for name, p in module._parameters.items():
            if p is not None:
                seen[p] = seen.get(p, 0) + 1
                if seen[p] > 2:
                    yield module, name


def _in_the_usual_order(gradient: Tensor) -> Tensor:
    """Its elements in the order of memory, in a shape whose channels do not come last."""
    last = gradient.contiguous(memory_format=torch.channels_last)
    return last.permute(0, 2, 3, 1).reshape(gradient.shape)
