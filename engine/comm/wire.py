"""Wire formats: the representation of gradients while they travel to their owners."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class WireFormat(ABC):
    """Turns gradients into messages, and messages into contributions that ``fold`` adds.

    The sender writes a unit's gradients to a flat buffer of dtype ``packed`` and encodes the part of it that goes to
    each rank. The owner decodes the received rows and folds them. A format in which encoding is a cast names its dtype
    as ``packed``: then packing has rounded already, and neither encoding nor decoding costs a pass over the values.
    """

    #: The dtype of the buffer in which gradients are collected before they are encoded.
    packed: torch.dtype
    #: The dtype of decoded values, which holds each of them exactly.
    decoded: torch.dtype

    @abstractmethod
    def encode(self, values: Tensor) -> Tensor:
        """The message: ``values`` [ranks, n] in any dtype become [ranks, m], contiguous, row r for rank r."""

    @abstractmethod
    def decode(self, message: Tensor) -> Tensor:
        """The contributions: a message [ranks, m] becomes [ranks, n] in ``decoded``; it may share the memory."""

    @abstractmethod
    def nbytes(self, elements: int) -> int:
        """The bytes in which so many elements travel."""


class CastFormat(WireFormat):
    """Each value travels rounded to a floating-point dtype: fp32, bf16 or fp16."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.packed = self.decoded = dtype

    def encode(self, values: Tensor) -> Tensor:
        return values.to(self.decoded).contiguous()

    def decode(self, message: Tensor) -> Tensor:
        return message

    def nbytes(self, elements: int) -> int:
        return elements * self.decoded.itemsize
