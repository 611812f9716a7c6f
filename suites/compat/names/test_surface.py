"""The surface: each name that transformers, accelerate and peft use is there, and new ones show in a golden list."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from zerobench.compat.activation import SITE
from zerobench.compat.profiling.monitors import MonitorMaster, get_monitor_config
from zerobench.suites.compat.names import touched
from zerobench.suites.compat.programs.jobs import offline
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT

_PROGRAM = """
import importlib, json, sys
missing = []
for name in json.load(sys.stdin):
    found, parts = None, name.split(".")
    for place in range(len(parts)):
        module = ".".join(parts[: place + 1])
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError:
            found = getattr(found, parts[place], None)
        if found is None:
            missing.append(name)
            break
print(json.dumps(missing))
"""

#: Names that scripts, TRL and Lightning import.
_OF_SCRIPTS = {
    "deepspeed.DeepSpeedOptimizerCallable",
    "deepspeed.constants.TORCH_DISTRIBUTED_DEFAULT_PORT",
    "deepspeed.constants.default_pg_timeout",
    "deepspeed.runtime.base_optimizer.DeepSpeedOptimizer",
    "deepspeed.runtime.engine.DeepSpeedSchedulerCallable",
    "deepspeed.runtime.zero.offload_config.OffloadDeviceEnum",
    "deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3",
    "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer",
    "deepspeed.runtime.zero.utils.is_zero_param",
}


def test_each_name_is_there() -> None:
    """Of the recorded names none is missing in the stand-in."""
    recorded = {name for each in json.loads(touched.GOLDEN.read_text()).values() for name in each}
    names = sorted(recorded | _OF_SCRIPTS)
    env = {**outside(), "PYTHONPATH": f"{SITE}:{ROOT}", "DS_ACCELERATOR": "cpu"}
    command = [sys.executable, "-c", _PROGRAM]
    done = subprocess.run(command, input=json.dumps(names), env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


@pytest.mark.skipif(offline(), reason="needs the extra hf: pip install 'zerobench[hf]'")
def test_names_of_the_installed_releases() -> None:
    """The installed releases use no others; record new ones by ``python -m zerobench.suites.compat.names.touched``."""
    recorded = json.loads(touched.GOLDEN.read_text())
    assert {package: set(names) - set(recorded[package]) for package, names in touched.found().items()} == {
        package: set() for package in touched.PACKAGES
    }


def test_csv_monitor(tmp_path: Path) -> None:
    """A file for each event, with DeepSpeed's header, that a second job continues."""
    section = {"enabled": True, "output_path": str(tmp_path), "job_name": "job"}
    for samples in (16, 32):
        monitors = MonitorMaster(get_monitor_config({"csv_monitor": section, "tensorboard": {"enabled": False}}))
        monitors.write_events([("Train/Samples/lr", 0.5, samples)])
        monitors.close()
    with (tmp_path / "job" / "Train_Samples_lr.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["step", "lr"], ["16", "0.5"], ["32", "0.5"]]
