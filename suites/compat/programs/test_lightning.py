"""Lightning's DeepSpeed strategies and its conversion of checkpoints, on modules with the names that are changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_STRATEGY = """
class CUDAAccelerator: ...


def _validate_device_index_selection(parallel_devices):
    indices = [each.index for each in parallel_devices]
    if indices != list(range(len(indices))):
        raise RuntimeError(f"the device indices {indices} do not match")


class DeepSpeedStrategy:
    def setup(self, accelerator, devices):
        if not isinstance(accelerator, CUDAAccelerator):
            raise RuntimeError("only supported on CUDA GPUs")
        _validate_device_index_selection(devices)
"""
_CONVERSION = """
def convert_zero_checkpoint_to_fp32_state_dict(checkpoint_dir, output_file, tag=None):
    raise FileNotFoundError("*_optim_states.pt")
"""
_SCRIPT = """
import json, sys
import deepspeed, torch
from pytorch_lightning.accelerators import CPUAccelerator
from pytorch_lightning.strategies.deepspeed import CUDAAccelerator, DeepSpeedStrategy
from pytorch_lightning.utilities.deepspeed import convert_zero_checkpoint_to_fp32_state_dict as convert

DeepSpeedStrategy().setup(CPUAccelerator(), [torch.device("cpu")] * 2)
refused = 0
for accelerator, device in ((object(), "cpu"), (CPUAccelerator(), "cuda:1")):
    try:
        DeepSpeedStrategy().setup(accelerator, [torch.device(device)])
    except RuntimeError:
        refused += 1

folder = sys.argv[1]
keys = {"train_batch_size": 1, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
engine, *_ = deepspeed.initialize(model=torch.nn.Linear(1, 1), config=keys)
engine.save_checkpoint(folder, tag="checkpoint", client_state={"epoch": 3, "hyper_parameters": {"width": 2}})
convert(folder, folder + "/one.pt")
one = torch.load(folder + "/one.pt", weights_only=True)
same = all(torch.equal(one["state_dict"][name], value) for name, value in engine.module.state_dict().items())
print("FOUND " + json.dumps([refused, one["epoch"], one["hyper_parameters"], sorted(one["state_dict"]), same]))
"""


def _package(folder: Path) -> None:
    """Lightning as far as its modules are changed."""
    for name, text in {
        "accelerators/__init__": "class CPUAccelerator: ...\n",
        "strategies/__init__": "",
        "strategies/deepspeed": _STRATEGY,
        "utilities/__init__": "",
        "utilities/deepspeed": _CONVERSION,
        "__init__": "",
    }.items():
        file = folder / "pytorch_lightning" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def test_lightning(tmp_path: Path) -> None:
    """The strategy takes CPU ranks, and nothing else that it refuses; a converted checkpoint has the client's state."""
    _package(tmp_path)
    (tmp_path / "train.py").write_text(_SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1"]
    command += ["-m", "zerobench.compat", "train.py", str(tmp_path / "saved")]
    env = {**os.environ, "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    line = next((each for each in done.stdout.splitlines() if each.startswith("FOUND ")), "")
    assert line, done.stderr[-2000:]
    assert json.loads(line.removeprefix("FOUND ")) == [2, 3, {"width": 2}, ["bias", "weight"], True]
