"""``deepspeed.utils.zero_to_fp32``: the whole weights of a checkpoint, without an engine, in one process."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from zerobench.compat.checkpoint.export import save_parts, write_whole
from zerobench.compat.errors import MissingWeights, raised_as
from zerobench.engine.checkpoint.offline import read_weights
from zerobench.engine.config.schema import DTYPES


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: str | Path,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
    lazy_mode: bool = False,
) -> dict[str, Tensor]:
    """The weights by name, on the CPU.

    Raises:
        MissingWeights: there is no such checkpoint, or it is damaged; it is a CheckpointError.
    """
    with raised_as(MissingWeights):
        return read_weights(checkpoint_dir, tag, frozen=not exclude_frozen_parameters)


#: The names of dtypes that weights can be written in: DeepSpeed's and torch's.
_DTYPES = DTYPES | {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}


def convert_zero_checkpoint_to_state_dict(
    checkpoint_dir: str | Path,
    output_dir: str | Path,
    dtype: str | torch.dtype = torch.float32,
    max_shard_size: str | int | None = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """Write the weights, rounded to ``dtype``, to ``pytorch_model.bin`` or ``model.safetensors``.

    If they are larger than ``max_shard_size``, they are several files with an index; see :func:`save_parts`.

    Raises:
        CheckpointError: there is no such checkpoint, it is damaged, or a file cannot be written.
        ValueError: an unknown dtype.
    """
    target = _dtype(dtype)
    state = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag, exclude_frozen_parameters)
    once = {id(value): value.to(target) if value.is_floating_point() else value for value in state.values()}
    rounded = {name: once[id(value)] for name, value in state.items()}
    if safe_serialization:  # such a file has no two names of one tensor
        first = {id(value): name for name, value in reversed(rounded.items())}
        rounded = {name: value for name, value in rounded.items() if first[id(value)] == name}
    name = "model.safetensors" if safe_serialization else "pytorch_model.bin"
    save_parts(rounded, Path(output_dir), name, max_shard_size)


def _dtype(given: str | torch.dtype) -> torch.dtype:
    found = _DTYPES.get(str(given).removeprefix("torch.").lower())
    if found is None:
        raise ValueError(f"dtype {given!r} is not offered; expected one of {', '.join(_DTYPES)}")
    return found


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: str | Path,
    output_dir: str | Path,
    max_shard_size: str | int | None = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """:func:`convert_zero_checkpoint_to_state_dict` in fp32."""
    convert_zero_checkpoint_to_state_dict(
        checkpoint_dir, output_dir, torch.float32, max_shard_size, safe_serialization, tag, exclude_frozen_parameters
    )


def load_state_dict_from_zero_checkpoint(
    model: nn.Module, checkpoint_dir: str | Path, tag: str | None = None
) -> nn.Module:
    """Load the weights into a model of no engine, which moves to the CPU.

    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged.
    """
    model.cpu().load_state_dict(get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag), strict=False)
    return model


_SCRIPT = '''#!/usr/bin/env python
"""Writes the whole weights of the checkpoint in this folder: {script}.py CHECKPOINT_DIR OUTPUT_DIR{more}."""

from zerobench.compat.checkpoint.zero_to_fp32 import {main}

if __name__ == "__main__":
    {main}()
'''


def write_scripts(folder: Path) -> None:
    """Write ``zero_to_fp32.py`` and ``zero_to_torch.py`` to the folder; each appears when it is complete."""
    _write_script(folder, "zero_to_fp32", main="main")
    _write_script(folder, "zero_to_torch", main="main_of_dtype", more=" --dtype DTYPE")


def _write_script(folder: Path, script: str, main: str, more: str = "") -> None:
    text = _SCRIPT.format(script=script, main=main, more=more)
    write_whole(folder / f"{script}.py", lambda path: path.write_text(text, encoding="utf-8"))


def main(arguments: list[str] | None = None) -> None:
    """The command of ``zero_to_fp32.py``, with DeepSpeed's arguments."""
    _convert(_parser("Write the whole fp32 weights of a checkpoint.").parse_args(arguments), torch.float32)


def main_of_dtype(arguments: list[str] | None = None) -> None:
    """The command of ``zero_to_torch.py``, with DeepSpeed's arguments."""
    parser = _parser("Write the whole weights of a checkpoint in a dtype.")
    parser.add_argument("--dtype", required=True, choices=sorted(_DTYPES), help="of the floating-point tensors")
    given = parser.parse_args(arguments)
    _convert(given, given.dtype)


def _parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("checkpoint_dir", help="the folder with the file 'latest'")
    parser.add_argument("output_dir", help="the folder for the weights")
    parser.add_argument("--max_shard_size", default="5GB", help="of a file of weights; needs huggingface_hub")
    parser.add_argument("--safe_serialization", action="store_true", help="write safetensors")
    parser.add_argument("-t", "--tag", help="the checkpoint; by default the latest one")
    parser.add_argument("--exclude_frozen_parameters", action="store_true", help="leave frozen parameters out")
    parser.add_argument("-d", "--debug", action="store_true", help="without effect")
    return parser


def _convert(given: argparse.Namespace, dtype: str | torch.dtype) -> None:
    convert_zero_checkpoint_to_state_dict(
        given.checkpoint_dir,
        given.output_dir,
        dtype,
        given.max_shard_size,
        given.safe_serialization,
        given.tag,
        given.exclude_frozen_parameters,
    )
