"""Lightning on this engine: its DeepSpeed strategies on CPU ranks, and the conversion of its checkpoints.

- The strategies refuse a CPU, whose devices have no index: if the ranks train on the CPU, it is taken.
- The conversion to one file reads DeepSpeed's files for what Lightning keeps beside the weights: it comes from the
  client state of the checkpoint's record.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any


def _strategies(module: Any) -> None:
    from zerobench.compat.accelerator.accelerator import local_device

    if local_device().type != "cpu":
        return
    accelerators = importlib.import_module(module.__name__.removesuffix("strategies.deepspeed") + "accelerators")
    validate = module._validate_device_index_selection

    def validate_devices(parallel_devices: Any) -> None:
        if any(each.type != "cpu" for each in parallel_devices):
            validate(parallel_devices)

    module.CUDAAccelerator = (module.CUDAAccelerator, accelerators.CPUAccelerator)  # its one use is isinstance()
    module._validate_device_index_selection = validate_devices


def _conversion(module: Any) -> None:
    convert_files = module.convert_zero_checkpoint_to_fp32_state_dict

    @functools.wraps(convert_files)
    def convert(
        checkpoint_dir: str | PathLike[str], output_file: str | PathLike[str], tag: str | None = None
    ) -> dict[str, Any]:
        import torch

        from zerobench.compat.checkpoint.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
        from zerobench.engine.checkpoint.deepspeed.files import is_deepspeed
        from zerobench.engine.checkpoint.plain import decode
        from zerobench.engine.checkpoint.values import find_checkpoint, open_record

        folder = find_checkpoint(Path(checkpoint_dir), tag)
        if is_deepspeed(folder):
            converted: dict[str, Any] = convert_files(checkpoint_dir, output_file, tag)
            return converted
        weights = get_fp32_state_dict_from_zero_checkpoint(Path(checkpoint_dir), tag)
        state: dict[str, Any] = decode(open_record(folder).contents.client_state)
        state["state_dict"] = {name.removeprefix("_forward_module."): value for name, value in weights.items()}
        print(f"Saving fp32 state dict to {output_file}")
        torch.save(state, output_file)
        return state

    module.convert_zero_checkpoint_to_fp32_state_dict = convert


#: Lightning's packages are installed under four names; two of them have the conversion.
PATCHES: dict[str, Callable[[Any], None]] = {
    **{
        f"{package}.strategies.deepspeed": _strategies
        for package in ("lightning.fabric", "lightning.pytorch", "lightning_fabric", "pytorch_lightning")
    },
    **{f"{package}.utilities.deepspeed": _conversion for package in ("lightning.pytorch", "pytorch_lightning")},
}
