"""Source: the checkpoint that a load reads, in this engine's layout or in DeepSpeed's."""

from __future__ import annotations

from collections.abc import Mapping
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

    def read(self, memory: Mapping[Range, Tensor]) -> None:
        """Read the values of ranges into their memory, 1-dimensional on the host, of the checkpoint's dtype.

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

    def read(self, memory: Mapping[Range, Tensor]) -> None:
        distributed.load(self.folder, self.record, memory)
