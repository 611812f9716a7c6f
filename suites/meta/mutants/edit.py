"""Engines that lose the values written inside GatheredParameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class EditsACopyOfTheMaster(Mutant):
    points_at = Points("parameters")

    def sabotage(self) -> None:
        for state in self.engine.states:
            state.optimizer_store.write = lambda portion, name, start, values: None  # type: ignore[method-assign]


class EditsACopyOfTheShard(Mutant):
    points_at = Points("model_parameters", "parameters")  # in fp32 the shard is the master

    def sabotage(self) -> None:
        for state in self.engine.states:
            state.parameter_store.edit = _copy_of(state.parameter_store)  # type: ignore[method-assign]


class EditsACopyOfFrozenShards(Mutant):
    """Edits of sharded parameters that do not train are lost, as they have no master."""

    points_at = Points("model_parameters")

    def sabotage(self) -> None:
        for state in (each for each in self.engine.states if not each.unit.trainable):
            state.parameter_store.edit = _copy_of(state.parameter_store)  # type: ignore[method-assign]


def _copy_of(store: Any) -> Any:
    @contextmanager
    def edit() -> Iterator[Tensor]:
        yield store.load().clone()

    return edit


EDIT_MUTANTS: list[type[Mutant]] = [EditsACopyOfTheMaster, EditsACopyOfTheShard, EditsACopyOfFrozenShards]
