"""``deepspeed.env_report``, the module behind ``ds_report``: the installed packages."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from zerobench.compat.accelerator.accelerator import get_accelerator
from zerobench.compat.activation import SITE, VERSION

_COLUMN = 33


def debug_report() -> None:
    """Print versions and paths of torch and of the stand-in, as DeepSpeed lays them out."""
    report = [
        ("torch install path", [str(Path(torch.__file__).parent)]),
        ("torch version", torch.__version__),
        ("deepspeed install path", [str(Path(SITE) / "deepspeed")]),
        ("deepspeed info", f"{VERSION}, zerobench's reference engine stands in for it"),
    ]
    if get_accelerator().device_name() == "cuda":
        report.append(("torch cuda version", str(torch.version.cuda)))
    print("DeepSpeed general environment info:")
    for name, value in report:
        print(name, "." * (_COLUMN - len(name)), value)


def main(hide_operator_status: bool = False, hide_errors_and_warnings: bool = False) -> None:
    """Print the report; it has no operators, because the engine compiles none of DeepSpeed's."""
    debug_report()


def cli_main() -> None:
    """The command, with DeepSpeed's options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hide_operator_status", action="store_true")
    parser.add_argument("--hide_errors_and_warnings", action="store_true")
    main(**vars(parser.parse_args()))
