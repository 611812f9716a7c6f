"""``deepspeed.utils.zero_to_fp32``: the whole fp32 weights of a checkpoint, without an engine, in one process."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from torch import Tensor, nn

from zerobench.compat.export import save_state_dict
from zerobench.engine.checkpoint.offline import read_weights


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: str | Path,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
    lazy_mode: bool = False,
) -> dict[str, Tensor]:
    """The weights by name, on the CPU.

    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged.
    """
    return read_weights(checkpoint_dir, tag, frozen=not exclude_frozen_parameters)


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: str | Path,
    output_dir: str | Path,
    max_shard_size: str | None = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """Write the weights to one file, ``pytorch_model.bin`` or ``model.safetensors``; ``max_shard_size`` has no effect.

    Raises:
        CheckpointError: there is no such checkpoint, it is damaged, or the file cannot be written.
    """
    state = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag, exclude_frozen_parameters)
    save_state_dict(state, Path(output_dir), "model.safetensors" if safe_serialization else "pytorch_model.bin")


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
"""Writes the whole fp32 weights of the checkpoint in this folder: zero_to_fp32.py CHECKPOINT_DIR OUTPUT_DIR."""

from zerobench.compat.zero_to_fp32 import main

if __name__ == "__main__":
    main()
'''


def write_script(folder: Path) -> None:
    """Write ``zero_to_fp32.py`` to the folder; it appears when it is complete."""
    unfinished = folder / f".zero_to_fp32.{os.getpid()}"
    unfinished.write_text(_SCRIPT, encoding="utf-8")
    unfinished.replace(folder / "zero_to_fp32.py")


def main(arguments: list[str] | None = None) -> None:
    """The command of this script, with DeepSpeed's arguments."""
    parser = argparse.ArgumentParser(description="Write the whole fp32 weights of a checkpoint.")
    parser.add_argument("checkpoint_dir", help="the folder with the file 'latest'")
    parser.add_argument("output_dir", help="the folder for the weights")
    parser.add_argument("--max_shard_size", default="5GB", help="without effect: the weights are one file")
    parser.add_argument("--safe_serialization", action="store_true", help="write safetensors")
    parser.add_argument("-t", "--tag", help="the checkpoint; by default the latest one")
    parser.add_argument("--exclude_frozen_parameters", action="store_true", help="leave frozen parameters out")
    parser.add_argument("-d", "--debug", action="store_true", help="without effect")
    given = parser.parse_args(arguments)
    convert_zero_checkpoint_to_fp32_state_dict(
        given.checkpoint_dir,
        given.output_dir,
        safe_serialization=given.safe_serialization,
        tag=given.tag,
        exclude_frozen_parameters=given.exclude_frozen_parameters,
    )
