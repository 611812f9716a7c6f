"""pack and unpack: many tensors to and from one flat buffer, with a cast."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from zerobench.engine.native import CODES, call
from zerobench.engine.ops.operators import flat as check_flat
from zerobench.engine.ops.operators import operator

#: Bytes that one call of :func:`clones` copies; glibc's malloc keeps freed memory of up to 32 MiB for the next time.
_TOGETHER = 1 << 24


def pack(flat: Tensor, tensors: Sequence[Tensor], starts: Sequence[int]) -> None:
    """Write each tensor's elements, in memory order, to ``flat`` from its start on, rounded to the dtype of ``flat``,
    and -0 to all other elements of ``flat``: a sum that they are added to keeps its bits, a sum of -0 as well.

    Args:
        flat: [n], fp32, bf16 or fp16; changed in every element.
        tensors: of any shape, in these dtypes; their elements fill their memory without gaps, in any order of strides.
        starts: the first element of each in ``flat``; the tensors do not overlap there.

    Raises:
        ValueError: a tensor extends past the end of ``flat`` or has gaps, or dtypes or devices do not match.
    """
    _PACK(flat, tensors, starts)


def unpack(tensors: Sequence[Tensor], flat: Tensor, starts: Sequence[int]) -> None:
    """The inverse: fill each tensor's memory from ``flat``, rounded to the tensor's dtype. See pack.

    The elements of ``flat`` between the tensors are not read.
    """
    _UNPACK(tensors, flat, starts)


def clones(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of flat tensors on the CPU; neighbours of one dtype share their memory, because one call copies them."""
    return [copy for run in _runs(tensors) for copy in _clones(run)]


def _runs(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one dtype, up to the one with which they have that many bytes."""
    run: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if run and (tensor.dtype != run[0].dtype or size >= _TOGETHER):
            yield run
            run, size = [], 0
        run.append(tensor)
        size += tensor.nbytes
    if run:
        yield run


def _clones(run: Sequence[Tensor]) -> Sequence[Tensor]:
    if run[0].dtype not in CODES:
        return [tensor.clone() for tensor in run]
    sizes = [tensor.numel() for tensor in run]
    flat = run[0].new_empty(sum(sizes))
    pack(flat, run, [0, *accumulate(sizes)][:-1])
    return torch.split(flat, sizes)


def pack_definition(flat: Tensor, tensors: Sequence[Tensor], starts: Sequence[int]) -> None:
    """pack in torch: the specification."""
    flat.fill_(-0.0)
    for tensor, start in zip(tensors, starts, strict=True):
        flat[start : start + tensor.numel()].copy_(_memory(tensor))


def unpack_definition(tensors: Sequence[Tensor], flat: Tensor, starts: Sequence[int]) -> None:
    """unpack in torch: the specification."""
    for tensor, start in zip(tensors, starts, strict=True):
        _memory(tensor).copy_(flat[start : start + tensor.numel()])


def _memory(tensor: Tensor) -> Tensor:
    """The tensor's elements in memory order."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _check_pack(flat: Tensor, tensors: Sequence[Tensor], starts: Sequence[int]) -> None:
    check_flat("flat", flat, flat)
    if len(tensors) != len(starts):
        raise ValueError(f"expected as many starts as tensors; got {len(starts)} for {len(tensors)}")
    n = flat.numel()
    for tensor, start in zip(tensors, starts, strict=True):
        if start < 0 or start + tensor.numel() > n:
            raise ValueError(f"a tensor of {tensor.numel()} elements does not fit into {n} at {start}")
        if tensor.dtype not in CODES or tensor.device != flat.device:
            raise ValueError(f"expected fp32, bf16 or fp16 on {flat.device}; got {tensor.dtype} on {tensor.device}")
        if not tensor.is_contiguous() and not torch.ops.aten.is_non_overlapping_and_dense(tensor):
            raise ValueError(f"a tensor's elements leave gaps: shape {tuple(tensor.shape)}, strides {tensor.stride()}")


def _check_unpack(tensors: Sequence[Tensor], flat: Tensor, starts: Sequence[int]) -> None:
    _check_pack(flat, tensors, starts)


def pack_native(flat: Tensor, tensors: Sequence[Tensor], starts: Sequence[int]) -> None:
    """Run the kernel of pack; it writes -0 to a piece without an address."""
    sizes = tuple([tensor.numel() for tensor in tensors])
    _move("pack", flat, tensors, _places(flat.numel(), tuple(starts), sizes))


def unpack_native(tensors: Sequence[Tensor], flat: Tensor, starts: Sequence[int]) -> None:
    """Run the kernel of unpack."""
    _move("unpack", flat, tensors, [array("q", starts), array("q", [tensor.numel() for tensor in tensors])])


@lru_cache(maxsize=1024)
def _places(n: int, starts: tuple[int, ...], sizes: tuple[int, ...]) -> list[array[int]]:
    """The starts and the sizes of the pieces: the tensors', and after them the ranges that no tensor covers."""
    gaps = list(_gaps(n, sorted(zip(starts, sizes, strict=True))))
    return [array("q", [*starts, *(gap[0] for gap in gaps)]), array("q", [*sizes, *(gap[1] for gap in gaps)])]


def _gaps(n: int, covered: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The start and the size of each range of n elements between those that are covered, in order."""
    end = 0
    for start, size in covered:
        if end < start:
            yield end, start - end
        end = max(end, start + size)
    if end < n:
        yield end, n - end


def _move(name: str, flat: Tensor, tensors: Sequence[Tensor], places: Sequence[array[int]]) -> None:
    """Move pieces between ``flat`` and the tensors' memory; those after the tensors' have no address."""
    count = len(places[0])
    none = [0] * (count - len(tensors))
    addresses = array("q", [*(tensor.data_ptr() for tensor in tensors), *none])
    codes = array("i", [*(CODES[tensor.dtype] for tensor in tensors), *none])
    tables = [table.buffer_info()[0] or None for table in (addresses, codes, *places)]
    call(name, flat, flat.data_ptr(), CODES[flat.dtype], count, *tables)


_PACK = operator(
    "pack(Tensor(a!) flat, Tensor[] tensors, int[] starts) -> ()",
    check=_check_pack,
    definition=pack_definition,
    native=pack_native,
)
_UNPACK = operator(
    "unpack(Tensor(a!)[] tensors, Tensor flat, int[] starts) -> ()",
    check=_check_unpack,
    definition=unpack_definition,
    native=unpack_native,
)
