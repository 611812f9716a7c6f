"""``accelerate launch`` with DeepSpeed: its ranks, and DeepSpeed's launcher where it starts it, run on this engine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from zerobench.compat.launcher.runner import launch_command

_COMPAT = "zerobench.compat"


def _launch(module: Any) -> None:
    prepare = module.prepare_deepspeed_cmd_env

    @functools.wraps(prepare)
    def prepare_deepspeed_cmd_env(args: Any) -> tuple[list[str] | None, dict[str, str]]:
        command, environment = prepare(args)
        if command is not None:  # several machines: the command deepspeed, which need not be there
            return launch_command(command[1:]), environment
        if not args.no_python and args.training_script != _COMPAT:
            script = ["-m", args.training_script] if args.module else [args.training_script]
            args.training_script_args = [*script, *args.training_script_args]
            args.training_script, args.module = _COMPAT, True
        return command, environment

    module.prepare_deepspeed_cmd_env = prepare_deepspeed_cmd_env


#: By module, the change that follows its import.
PATCHES: dict[str, Callable[[Any], None]] = {"accelerate.utils.launch": _launch}
