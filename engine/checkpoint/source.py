"""Source: the checkpoint that a load reads, in this engine's layout or in DeepSpeed's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from zerobench.engine.checkpoint import distributed
from zerobench.engine.checkpoint.pieces import Range
from zerobench.engine.checkpoint.plain import decode
from zerobench.engine.checkpoint.record import Contents, Record


class Size(Protocol):
    """The length of a tensor in a checkpoint, and its dtype by the safetensors format's name."""

    @property
    def dtype(self) -> str: ...

    @property
    def elements(self) -> int: ...


class Source(Protocol):
    """A checkpoint: its contents, its tensors by key (see pieces.py), and their values."""

    @property
    def contents(self) -> Contents: ...

    @property
    def tensors(self) -> Mapping[str, Size]: ...

    @property
    def client_state(self) -> dict[str, Any]: ...

    def read(self, ranges: Sequence[Range]) -> Mapping[Range, Tensor]:
        """The values of ranges, 1-dimensional in new host memory.

        Raises:
            CheckpointError: a file is missing, damaged or too short.
        """


@dataclass(frozen=True)
class OwnSource:
    """A checkpoint in this engine's layout."""

    folder: Path
    record: Record

    @property
    def contents(self) -> Contents:
        return self.record.contents

    @property
    def tensors(self) -> Mapping[str, Size]:
        return self.record.tensors

    @property
    def client_state(self) -> dict[str, Any]:
        decoded: dict[str, Any] = decode(self.contents.client_state)
        return decoded

    def read(self, ranges: Sequence[Range]) -> Mapping[Range, Tensor]:
        return distributed.load(self.folder, self.record, ranges)
