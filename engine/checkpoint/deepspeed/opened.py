"""Opened: a checkpoint of DeepSpeed's with all its files there; tensors are maps of the files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zerobench.engine.checkpoint.deepspeed import pickles, universal
from zerobench.engine.checkpoint.deepspeed.files import (
    UNIVERSAL,
    check_ranks,
    check_whole,
    is_universal,
    model_files,
    optimizer_files,
)
from zerobench.engine.checkpoint.deepspeed.trained import Trained, of_ranks
from zerobench.engine.errors import CheckpointError


class Opened:
    """The content of the model's files by rank, the trained parameters, and everything else of the optimizer.

    Args:
        folder: the checkpoint's.
        first: the number of the first file whose checksums are checked.
        every: check every ``every``-th file from there on; other ranks check the others.

    Raises:
        CheckpointError: a file is missing, damaged or would run code, or the layout is not DeepSpeed's.
    """

    #: None at stage 0, whose files have no names of the trained parameters.
    trained: Trained | None
    optimizer: dict[str, Any]

    def __init__(self, folder: Path, first: int = 0, every: int = 1) -> None:
        self.files: list[Path] = []
        self._own = slice(first, None, every)
        check_whole(folder)
        models = model_files(folder)
        self.models = [pickles.read(path) for path in self._checked(models)]
        with pickles.understood(folder):
            self.world = int(self.model["dp_world_size"])
            ranks = optimizer_files(folder)
            check_ranks(folder, models, ranks, self.world)
            if is_universal(folder):
                self._take_universal(folder)
            else:
                self._check_there(folder, ranks)
                self._take_ranks([pickles.read(path)["optimizer_state_dict"] for path in self._checked(ranks)])

    @property
    def model(self) -> dict[str, Any]:
        """The content of rank 0's model file."""
        return self.models[0]

    def _checked(self, paths: Sequence[Path]) -> Sequence[Path]:
        self.files += paths
        for path in paths[self._own]:
            pickles.check(path)
        return paths

    def _check_there(self, folder: Path, ranks: Sequence[Path]) -> None:
        if self.model["param_shapes"] and self.model["optimizer"] is None and not ranks:
            raise CheckpointError(
                f"{str(folder)!r} has no file of the optimizer: neither '*_optim_states.pt' nor the folder "
                f"{UNIVERSAL!r}; load another tag, or a whole copy"
            )

    def _take_universal(self, folder: Path) -> None:
        universal.check_order(folder, self.model)
        [common] = self._checked([universal.common_file(folder)])
        self.optimizer = pickles.read(common)
        shapes = self.model["param_shapes"]
        states = universal.state_files(folder, shapes)
        self._checked([path for paths in states.values() for path in paths])
        self.trained = universal.of_universal(states, shapes, self.optimizer)

    def _take_ranks(self, states: list[dict[str, Any]]) -> None:
        self.optimizer = states[0] if states else self.model["optimizer"] or {}
        self.trained = of_ranks(self.model["param_shapes"], states)
