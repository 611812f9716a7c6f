"""The two jobs of docs/examples, run by a launcher on two ranks, and the outcome that they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT

EXAMPLES = ROOT / "docs" / "examples"
SCRIPTS = {"flan_t5": "flan_t5_summarisation.py", "bloom": "bloom_lora.py"}
#: Seconds; a job takes about fifteen on two idle cores.
LIMIT = 500
_LOGGED = ("loss", "grad_norm", "learning_rate", "eval_loss", "eval_recall", "eval_gen_len", "step")


@dataclass(frozen=True)
class Job:
    """One run of a job.

    Args:
        name: a key of SCRIPTS.
        stage: the ZeRO stage; None for the configuration of docs/examples as it is.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        offloads: whether the seed's offload sections stay.
        launcher: ``launch`` (zerobench), ``torchrun``, or ``deepspeed`` for torchrun with the installed DeepSpeed.
    """

    name: str
    stage: int | None = None
    precision: str = "fp32"
    launcher: str = "launch"
    offloads: bool = True

    def run(self, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
        """Run the job; it writes to ``out``."""
        out.parent.mkdir(parents=True, exist_ok=True)
        config = out.with_suffix(".json")
        config.write_text(json.dumps(self._config()), encoding="utf-8")
        precision = [] if self.precision == "fp32" or self.stage is None else [f"--{self.precision}"]
        script = [str(EXAMPLES / SCRIPTS[self.name]), "--deepspeed", str(config), "--output_dir", str(out)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        env = {**outside(), "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"}
        env |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, *self._launcher(), *script, *precision, *more]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        running = subprocess.Popen(command, env=env, cwd=out.parent, **pipes)
        try:
            printed, told = running.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            running.terminate()  # the launcher then ends its ranks
            running.communicate()
            raise
        return subprocess.CompletedProcess(command, running.returncode, printed, told)

    def _launcher(self) -> list[str]:
        if self.launcher == "launch":
            return ["-m", "zerobench", "launch", "--num_gpus", "2"]
        meeting = ["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"]
        module = "zerobench.suites.compat.programs.peer" if self.launcher == "deepspeed" else "zerobench.compat"
        return ["-m", "torch.distributed.run", "--nproc_per_node=2", *meeting, "-m", module]

    def _config(self) -> dict[str, Any]:
        """The seed's configuration; at another stage with the offload sections that the stage has."""
        config: dict[str, Any] = json.loads((EXAMPLES / f"{self.name}_ds_config.json").read_text(encoding="utf-8"))
        if self.stage is None:
            return config
        zero = {**config["zero_optimization"], "stage": self.stage, "stage3_gather_16bit_weights_on_model_save": True}
        if self.launcher == "deepspeed" or not self.offloads:
            zero = {key: value for key, value in zero.items() if not key.startswith("offload_")}
        if self.launcher == "deepspeed":
            config["optimizer"]["params"]["torch_adam"] = True  # its own would have to be compiled
        return {**config, "zero_optimization": zero, "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}


def finished(done: subprocess.CompletedProcess[str]) -> str:
    """The output of a job that ended well."""
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return done.stdout


def logged(out: Path) -> list[dict[str, Any]]:
    """The numbers of each step and evaluation, with all their digits."""
    history = json.loads((out / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    kept = [{key: value for key, value in entry.items() if key in _LOGGED} for entry in history]
    return [entry for entry in kept if len(entry) > 1]


def weights(out: Path) -> dict[str, bytes]:
    """The bytes of each saved tensor of the best model."""
    from safetensors.torch import load_file

    [file] = (out / "best").glob("*.safetensors")
    return {
        name: value.contiguous().view(-1).numpy().tobytes() for name, value in _as_integers(load_file(file)).items()
    }


def _as_integers(tensors: dict[str, Any]) -> dict[str, Any]:
    import torch

    return {name: tensor.view(torch.uint8) if tensor.dim() else tensor for name, tensor in tensors.items()}


def offline() -> bool:
    """Whether the libraries of the jobs are not installed."""
    from importlib.util import find_spec

    return any(find_spec(name) is None for name in ("transformers", "accelerate", "peft"))
