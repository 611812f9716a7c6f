"""A reader of the safetensors format, written from its description."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import torch
from torch import Tensor

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64, "U8": torch.uint8}


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file; asserts what the format demands."""
    content = path.read_bytes()
    [length] = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata, values = header.pop("__metadata__"), content[8 + length :]
    found, at = {}, 0
    for key, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype = _DTYPES[entry["dtype"]]
        assert begin == at, "the values have gaps"
        assert (8 + length + begin) % dtype.itemsize == 0, "the values are not aligned"
        flat = (
            torch.frombuffer(bytearray(values[begin:end]), dtype=dtype) if end > begin else torch.empty(0, dtype=dtype)
        )
        found[key], at = flat.view(entry["shape"]), end
    assert at == len(values), "bytes follow the values"
    return found, metadata
