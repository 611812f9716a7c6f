"""``zerobench checkpoint``: inspect, verify or export a checkpoint of the reference engine or of DeepSpeed."""

from __future__ import annotations

import argparse
import json
from typing import Any

from zerobench import (
    describe_checkpoint,
    export_checkpoint,
    export_deepspeed_checkpoint,
    verify_checkpoint,
)
from zerobench.errors import UsageError


def execute(given: argparse.Namespace) -> int:
    """Run one of the three actions; returns the exit code."""
    if given.action == "inspect":
        found = describe_checkpoint(given.directory, given.tag)
        print(json.dumps(found) if given.json else render(found))
    elif given.action == "verify":
        print(f"{verify_checkpoint(given.directory, given.tag):,} bytes, each as it was saved")
    elif given.format == "deepspeed":
        export_deepspeed_checkpoint(given.directory, given.out, _configuration(given), given.ranks, given.tag)
        print(f"{given.out}: a checkpoint for {given.ranks} ranks of DeepSpeed")
    else:
        export_checkpoint(given.directory, given.out, given.tag, given.dtype)
        print(f"{given.out}: the whole weights in {given.dtype}")
    return 0


def _configuration(given: argparse.Namespace) -> dict[str, Any]:
    """The configuration of DeepSpeed's job."""
    if given.config is None or given.ranks is None:
        raise UsageError(
            "--format deepspeed needs --config, the configuration of DeepSpeed's job, and --ranks, its number of ranks"
        )
    try:
        found = json.loads(given.config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"could not read {str(given.config)!r} as JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{str(given.config)!r} holds no JSON object")
    return found


def render(found: dict[str, Any]) -> str:
    """The record for people, a line for each fact."""
    skipped = f", {found['skipped_steps']} of them skipped" if found["skipped_steps"] else ""
    lines = {
        "checkpoint": found["folder"],
        "latest": found["latest"] or "none",
        "written by": found["written_by"],
        "steps": f"{found['global_steps']:,}{skipped}",
        "parameters": f"{found['parameters']:,}, trained in {found['dtype']}",
        "optimizer": found["optimizer"],
        "schedule": found["lr_scheduler"] or "none",
        "ranks": f"{found['world']}",
        "bytes": ", ".join(f"{kind} {size:,}" for kind, size in found["bytes"].items()),
        "files": ", ".join(f"{name} {size:,}" for name, size in found["files"].items()),
        "left over": ", ".join(found["leftovers"]) or "nothing",
    }
    return "\n".join(f"{name:<12}{value}" for name, value in lines.items())
