"""Scripts as DeepSpeed's users write them, in ``scripts``: run as ``__main__`` on ranks of a pool, or by the launcher.

None knows of zerobench. Each prints its losses, with all digits, on rank 0.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist

from zerobench.suites.compat import loops
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT

SCRIPTS = Path(__file__).with_name("scripts")
_BY_FILE = ["--deepspeed", "--deepspeed_config", "ds_config.json"]
#: The arguments of each script of plain torch, by its name.
PLAIN: dict[str, list[str]] = {
    "cifar": ["--stage", "{stage}"],
    "cifar-fp16": ["--stage", "{stage}", "--dtype", "fp16"],
    "squad": _BY_FILE,
    "chat_sft": ["--zero_stage", "{stage}", "--dtype", "fp32"],
    "chat_sft-offload": ["--zero_stage", "{stage}", "--offload"],
    "resume": _BY_FILE,
    "gathered": _BY_FILE,
    "gan": _BY_FILE,
    "collectives": ["--stage", "{stage}"],
    "reward": ["--stage", "{stage}"],
    "peculiar": ["--stage", "{stage}"],
    "plain_backward": ["--stage", "{stage}"],
    "plain_backward-fp16": ["--stage", "{stage}", "--dtype", "fp16"],
    "plain_backward-autocast": ["--stage", "{stage}", "--autocast"],
    "strategy": ["--stage", "{stage}"],
    "penalty": ["--stage", "{stage}"],
    "routed": ["--stage", "{stage}"],
    "lr_finder": ["--stage", "{stage}", "--lr_schedule", "LRRangeTest", "--lr_range_test_step_size", "2"],
    "callbacks": ["--stage", "{stage}"],
    "boundaries": ["--stage", "{stage}"],
    "handlers": ["--stage", "{stage}"],
    "layer_decay": ["--stage", "{stage}"],
}
#: Those that need the extra hf.
HUGGING_FACE: dict[str, list[str]] = {
    "trainer": ["--deepspeed", "auto.json"],
    "trainer-fp16": ["--deepspeed", "auto.json", "--fp16", "--label_smoothing_factor", "0.1"],
    "trainer-checkpointing": ["--deepspeed", "auto.json", "--bf16", "--gradient_checkpointing", "--bf16_full_eval"],
    "glue": ["--stage", "{stage}"],
    "accelerated": ["--stage", "{stage}"],
    "accelerated-config": ["--stage", "{stage}", "--kind", "config"],
    "accelerated-bf16": ["--stage", "{stage}", "--kind", "bf16"],
    "pretrained": _BY_FILE,
    "composite": ["--stage", "{stage}"],
    "saved_by_rank_zero": ["--stage", "{stage}"],
    "speech": ["--stage", "{stage}"],
    "prompts": ["--stage", "{stage}"],
}
#: In lines with times, which Trainer prints, and the timer of steps_per_print.
_TIMES = ("_runtime'", "SamplesPerSec=")
#: Seconds.
LIMIT = 400


def config(stage: int) -> dict[str, Any]:
    """The configuration file of the scripts that read one, for two ranks."""
    return {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 5e-3, "weight_decay": 0.01}},
        "gradient_clipping": 1.0,
        "steps_per_print": 2000,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }


def automatic(stage: int) -> dict[str, Any]:
    """The configuration file in which Trainer's arguments give the values."""
    optimizer = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}
    return {
        "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 8},
        "bf16": {"enabled": "auto"},
        "optimizer": optimizer,
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "steps_per_print": 2000,
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "wall_clock_breakdown": False,
    }


def _prepared(name: str, given: list[str], stage: int, folder: Path) -> list[str]:
    """The script and its arguments; its folder and configuration are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in (("ds_config.json", config(stage)), ("auto.json", automatic(stage))):
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    script = SCRIPTS / f"{name.partition('-')[0]}.py"
    return [str(script), *(each.format(stage=stage) for each in given)]


def run_as_main(group: dist.ProcessGroup, name: str, given: list[str], stage: int, folder: str) -> str:
    """Run a script on this rank as ``__main__``, and return what it prints."""
    loops.deepspeed()
    _forget_accelerate()
    rank, world = str(dist.get_rank()), str(dist.get_world_size())
    launcher = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "HF_HUB_OFFLINE": "1"}
    rank_zero_prepares = Path(folder) / f"rank{dist.get_rank()}-of-{stage}"
    command = _prepared(name, given, stage, Path(folder) if dist.get_rank() == 0 else rank_zero_prepares)
    dist.barrier()
    printed, before = io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with (
            mock.patch.object(sys, "argv", command),
            mock.patch.dict(os.environ, launcher),
            mock.patch.object(dist, "destroy_process_group"),  # the ranks go on
            contextlib.redirect_stdout(printed),
        ):
            runpy.run_path(command[0], run_name="__main__")
    finally:
        os.chdir(before)
    lines = [line for line in printed.getvalue().splitlines() if not line.startswith("[")]
    return "\n".join(line for line in lines if not any(each in line for each in _TIMES))


def _forget_accelerate() -> None:
    """Begin like a new process, in which accelerate keeps no state of another script."""
    state: Any = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(True)
        state.GradientState._reset_state()


#: The commands that start a script on two ranks.
_TORCHRUN = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"]
LAUNCHERS: dict[str, list[str]] = {
    "launch": ["-m", "zerobench", "launch", "--num_gpus", "2"],
    "torchrun": [*_TORCHRUN, "-m", "zerobench.compat"],
    "deepspeed": [*_TORCHRUN, "-m", "zerobench.suites.compat.programs.peer"],  # the installed one
    "accelerate": [
        *("-m", "zerobench.compat", "-m", "accelerate.commands.launch", "--num_processes", "2", "--num_machines", "1"),
        *("--use_deepspeed", "--zero_stage", "{stage}", "--zero3_save_16bit_model", "true", "--mixed_precision", "no"),
        *("--gradient_accumulation_steps", "2", "--gradient_clipping", "1.0", "--dynamo_backend", "no"),
        *("--main_process_port", "0"),
    ],
}


def launched(launcher: str, name: str, given: list[str], stage: int, folder: Path) -> str:
    """Run a script by a launcher on two ranks, and return what it prints.

    Raises:
        AssertionError: the launcher's exit code is not 0. That of DeepSpeed does not count: its ranks may abort after
            their last line.
    """
    launch = [each.format(stage=stage) for each in LAUNCHERS[launcher]]
    command = [sys.executable, *launch, *_prepared(name, given, stage, folder)]
    env = {**outside(), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT, cwd=folder, check=False)
    assert done.returncode == 0 or launcher == "deepspeed", done.stdout[-4000:] + done.stderr[-8000:]
    return done.stdout
