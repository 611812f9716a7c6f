"""``zerobench checkpoint``: inspect, verify or export a checkpoint of the reference engine."""

from __future__ import annotations

import argparse
import json
from typing import Any

from zerobench import describe_checkpoint, export_checkpoint, verify_checkpoint


def execute(given: argparse.Namespace) -> int:
    """Run one of the three actions; returns the exit code."""
    if given.action == "inspect":
        found = describe_checkpoint(given.directory, given.tag)
        print(json.dumps(found) if given.json else render(found))
    elif given.action == "verify":
        print(f"{verify_checkpoint(given.directory, given.tag):,} bytes, each as it was saved")
    else:
        export_checkpoint(given.directory, given.out, given.tag, given.dtype)
        print(f"{given.out}: the whole weights in {given.dtype}")
    return 0


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
