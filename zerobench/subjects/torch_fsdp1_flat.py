"""torch's FSDP1 with its default ``use_orig_params=False``: a unit's flat parameter is all that the optimizer sees."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel

from zerobench.model_specs import Odd
from zerobench.scenario import Scenario
from zerobench.subject import State
from zerobench.subjects.fsdp1_settings import OF_NAMED, ROOT_ALONE
from zerobench.subjects.torch_fsdp1 import TorchFsdp1
from zerobench.workload.data import DTYPES

_PAGE = "https://docs.pytorch.org/docs/2.13/fsdp.html#torch.distributed.fsdp.FullyShardedDataParallel"


class TorchFsdp1Flat(TorchFsdp1):
    """The parameters of a unit have one group, and train or are frozen together.

    A gradient of a part of a flat parameter is zero if no leaf used the part, so the optimizer moves it.
    """

    name = "torch-fsdp1-flat"
    keeps_parameters = False
    settings = tuple(name for name in TorchFsdp1.settings if name not in OF_NAMED)
    edits_gradients = False  # no function of FSDP1 reaches a parameter's part of the gradient

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if scenario.optimizer.second_group or scenario.optimizer.third_group:
            return f"use_orig_params=False allows no hyperparameters of one parameter: {_PAGE}"
        model = scenario.model
        shares = isinstance(model, Odd) and model.tied_blocks
        if scenario.frozen_steps and (shares or ROOT_ALONE in scenario.settings):
            return f"use_orig_params=False freezes a block alone only if it has an FSDP instance: {_PAGE}"
        if isinstance(model, Odd) and model.frozen:
            return f"use_orig_params=False allows no frozen parameter beside others of its unit: {_PAGE}"
        if isinstance(model, Odd) and model.leaves_some_out:
            return f"use_orig_params=False gives zeros to the unused part of a flat parameter: {_PAGE}"
        return super().unsupported(scenario)

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model, scenario, group)
        self.named.clear()  # the module has no such parameters any more, and their memory would stay

    def _trained(self) -> dict[str, nn.Parameter]:
        """The flat parameters by their places; this rank's shards between steps."""
        return {str(place): p for place, p in enumerate(self.model.parameters()) if p.requires_grad}

    @contextmanager
    def _named(self, *, writes: bool = False) -> Iterator[dict[str, nn.Parameter]]:
        """Inside, every parameter by its name, whole on every rank; with ``writes`` the values that are set remain."""
        with (
            warnings.catch_warnings(action="ignore"),
            FullyShardedDataParallel.summon_full_params(self.module, writeback=writes),
        ):
            yield dict(self.module.named_parameters())

    @torch.no_grad()
    def set_parameters(self, values: State) -> None:
        with self._named(writes=True) as named:
            for name, value in values.items():
                named[name].copy_(value)

    def parameters(self) -> State:
        with self._named() as named:
            return {name: p.detach().clone() for name, p in named.items()}

    def model_parameters(self) -> State:
        dtype = DTYPES[self.scenario.dtype]
        return {name: p.to(dtype) for name, p in self.parameters().items()}

    def gradients(self) -> State:
        shards = list(self.model.parameters())
        there = self._shown([torch.full_like(p, p.grad is not None) for p in shards])
        found = self._shown([torch.zeros_like(p) if p.grad is None else p.grad for p in shards])
        return {name: grad / self.scale for name, grad in found.items() if there[name].all()}

    @torch.no_grad()
    def _shown(self, values: Sequence[Tensor]) -> State:
        """Values of the flat parameters by the names of their parts: in place of them, for FSDP1 shows no others."""
        before = [p.clone() for p in self.model.parameters()]
        self._set_shards(values)
        found = self.parameters()
        self._set_shards(before)
        return found

    def _set_shards(self, values: Sequence[Tensor]) -> None:
        for p, value in zip(self.model.parameters(), values, strict=True):
            p.copy_(value)
