"""The flags of the command line and their values; if a value is invalid, a UsageError says so in one line."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NoReturn, get_args

from zerobench import __version__
from zerobench.bench.plan import STAGES_OF_ZERO
from zerobench.cli.replay_options import add_replay
from zerobench.cli.values import names, number, offloads, one_of, stages, whole
from zerobench.compat.launcher.options import add_launch
from zerobench.errors import UsageError
from zerobench.gate.grid import SUBJECT
from zerobench.machine.launch import Launch
from zerobench.model_specs import Gpt, Odd, Recompute
from zerobench.scenario import Dtype, Optimizer, Scenario
from zerobench.subjects import checked_name
from zerobench.workload.sizes import SIZES

_SUBJECTS = ("reference", "torch-ddp", "torch-fsdp2")
#: Of the draws: see suites/conftest.py.
PROFILES = ("quick", "default", "thorough")
_RANKS = 2
_STEPS = 15
_WARMUP = 3
_MICRO_BATCH = 4
_OUT = Path("zerobench-report")
#: By kind of model.
_DATA: dict[str, Literal["random", "dyadic", "text"]] = {"gpt": "text", "vit": "random", "odd": "dyadic"}
#: Its factors are powers of two, so that a product with one is exact.
_DYADIC = Optimizer(name="sgd", lr=2.0**-4, weight_decay=0.0, momentum=2.0**-1)


class Parser(argparse.ArgumentParser):
    """Raises instead of printing the usage and exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError that names the help option."""
        raise UsageError(f"{message} (see {self.prog} --help)")


def parser() -> Parser:
    """The parser of the whole command line; ``options.command`` is the command's name."""
    top = Parser(prog="zerobench", description="The benchmark and conformance suite for ZeRO.", allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"zerobench {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_run(commands.add_parser("run", help="train a model with several engines and report", allow_abbrev=False))
    add_replay(commands.add_parser("replay", help="repeat a comparison that failed", allow_abbrev=False))
    doctor = commands.add_parser("doctor", help="list this machine's devices, tools and packages", allow_abbrev=False)
    doctor.description = (
        "Lists devices, compilers, kernels (which it builds), backends and versions; exits with 1 if something is "
        "missing."
    )
    shown = doctor.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print JSON")
    shown.add_argument(
        "--wheels",
        action="store_true",
        help="print the packages that a machine with nothing but torch needs, for pip download --requirement",
    )
    _add_checkpoint(commands.add_parser("checkpoint", help="examine or export a checkpoint", allow_abbrev=False))
    _add_report(commands.add_parser("report", help="merge results and write their report", allow_abbrev=False))
    _add_compare(commands.add_parser("compare", help="list the differences between two results", allow_abbrev=False))
    _add_conform(commands.add_parser("conform", help="test engines with the equivalence suite", allow_abbrev=False))
    _add_gate(commands.add_parser("gate", help="compare results with a committed baseline", allow_abbrev=False))
    add_launch(commands.add_parser("launch", help="run a DeepSpeed job on the reference engine", allow_abbrev=False))
    return top


def _add_checkpoint(checkpoint: argparse.ArgumentParser) -> None:
    checkpoint.description = (
        "Reads a checkpoint of the reference engine, or of DeepSpeed, in one process, and runs no code in it."
    )
    actions = checkpoint.add_subparsers(dest="action", metavar="ACTION", required=True)
    inspect = actions.add_parser("inspect", help="print its record in short", allow_abbrev=False)
    inspect.add_argument("--json", action="store_true", help="print JSON")
    verify = actions.add_parser("verify", help="check every byte against its checksum", allow_abbrev=False)
    export = actions.add_parser(
        "export", help="write its whole weights, or a checkpoint of DeepSpeed's", allow_abbrev=False
    )
    for each in (inspect, verify, export):
        each.add_argument("directory", type=Path, help="the directory of the checkpoints")
        each.add_argument("--tag", help="the checkpoint; by default the latest")
    export.add_argument(
        "--format",
        choices=("safetensors", "deepspeed"),
        default="safetensors",
        help="the whole weights in one file, or a checkpoint from which DeepSpeed goes on (default: safetensors)",
    )
    export.add_argument("--out", type=Path, required=True, metavar="PATH", help="the file, or DeepSpeed's directory")
    dtypes = get_args(Dtype)
    export.add_argument("--dtype", choices=dtypes, default="fp32", help="of floating-point parameters (default: fp32)")
    export.add_argument("--config", type=Path, metavar="FILE", help="of --format deepspeed: its job's configuration")
    ranks = whole("ranks", 1)
    export.add_argument("--ranks", type=ranks, metavar="N", help="of --format deepspeed: the number of its ranks")


def _add_report(report: argparse.ArgumentParser) -> None:
    report.description = (
        "Merges results of zerobench run, and of pytest-benchmark with zerobench's measurements, and writes report.md, "
        "report.html and results.json."
    )
    report.add_argument("results", type=Path, nargs="+", metavar="RESULTS", help="files as results.json")
    report.add_argument("--out", type=Path, default=_OUT, metavar="DIR", help=f"default: {_OUT}")


def _add_compare(compare: argparse.ArgumentParser) -> None:
    compare.description = (
        "Compares two results, case by case. Exit code 0: nothing is worse; 1: a case fails that did not, or bytes or "
        "calls grew; 2: nothing was measured, or less than in the base; 3: the two cannot be compared."
    )
    compare.add_argument("base", metavar="BASE", help="a results.json, or a git revision, whose own code is measured")
    compare.add_argument("head", metavar="HEAD", help="another, measured with the same options")
    compare.add_argument(
        "--subject",
        type=checked_name,
        default=SUBJECT,
        metavar="NAME",
        help=f"the engine to measure in revisions; default: {SUBJECT}",
    )
    compare.add_argument("--json", action="store_true", help="print the comparison as JSON, not as tables")


def _add_conform(conform: argparse.ArgumentParser) -> None:
    conform.description = (
        "Runs the equivalence suite on each engine and writes conformance.json, conformance.md, conformance.html and a "
        "badge for each engine. A run that was interrupted goes on. 0: no finding; 1: a finding; 2: not enough ran; 3: "
        "the input."
    )
    add = conform.add_argument
    add("--subjects", type=names, default=(SUBJECT,), metavar="A,B", help=f"default: {SUBJECT}")
    add("--profile", type=one_of("profile", PROFILES), default="quick", metavar="NAME", help=", ".join(PROFILES))
    add("--out", type=Path, default=Path("zerobench-conformance"), metavar="DIR", help="default: zerobench-conformance")
    add(
        "--merge", type=Path, nargs="+", default=[], metavar="FILE", help="merge these conformance.json and run nothing"
    )
    add(
        "--select",
        action="append",
        default=[],
        metavar="PYTEST",
        help="another argument for pytest, such as --select=-k=exact",
    )


def _add_gate(gate: argparse.ArgumentParser) -> None:
    gate.description = (
        "Holds bytes, calls and bits to a committed baseline, peaks and errors to their bounds, and times to another "
        "revision, measured in alternation. 0: good; 1: a regression; 2: not enough was measured; 3: the input."
    )
    add = gate.add_argument
    add("--baseline", type=Path, required=True, metavar="FILE", help="such as reports/baselines/cpu.json")
    add(
        "--results",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="gate these; default: measure a small grid",
    )
    add("--time-against", metavar="REV", help="measure times, too, in alternation with this git revision")
    add("--update", action="store_true", help="write the baseline from the present measurements")
    add("--subject", type=checked_name, default=SUBJECT, metavar="NAME", help=f"default: {SUBJECT}")
    add("--summary", type=Path, metavar="FILE", help="append the Markdown to it; default: $GITHUB_STEP_SUMMARY, if set")
    add("--json", action="store_true", help="print JSON, not Markdown")


def _add_run(run: argparse.ArgumentParser) -> None:
    run.description = (
        "Trains a GPT on text, a ViT on synthetic images, or a model whose first step is exact, with several engines "
        "in alternating steps, judges their results, meters memory and traffic, and writes report.md, report.html and "
        "results.json."
    )
    _add_subjects(run.add_argument_group("engines").add_argument)
    _add_job(run.add_argument_group("training").add_argument)
    _add_ways(run.add_argument_group("measurement and output").add_argument)


def _add_subjects(add: Callable[..., object]) -> None:
    add("--subjects", type=names, default=_SUBJECTS, metavar="A,B", help=f"default: {','.join(_SUBJECTS)}")
    add(
        "--stages", type=stages, default=STAGES_OF_ZERO, metavar="0,1", help="of the reference engine; default: 0,1,2,3"
    )
    add(
        "--offload",
        type=offloads,
        default=("none",),
        metavar="none,cpu",
        help="targets, a case for each from stage 1 on: none, cpu or nvme; default: none",
    )
    add("--nvme-path", default="", metavar="DIR", help="folder of the files of nvme; default: the temporary directory")


def _add_job(add: Callable[..., object]) -> None:
    add("--ranks", type=whole("ranks", 1), metavar="N", help="number of ranks; default: 2, or the launched ranks")
    add(
        "--model",
        type=one_of("model", SIZES),
        default="mini",
        metavar="NAME",
        help=f"{', '.join(SIZES)}; default: mini",
    )
    add(
        "--dtype",
        type=one_of("dtype", get_args(Dtype)),
        default="fp32",
        metavar="NAME",
        help="fp32, bf16 or fp16; default: fp32",
    )
    add(
        "--recompute",
        type=one_of("recomputation", get_args(Recompute)),
        default="none",
        metavar="HOW",
        help="recompute the activations of blocks: none, reentrant or non_reentrant; default: none",
    )
    add(
        "--accumulation",
        type=whole("accumulation", 1),
        default=1,
        metavar="A",
        help="micro-steps in a step; default: 1",
    )
    add("--clip", type=number("clip"), default=0.0, metavar="NORM", help="clip gradients to this norm; default: 0, off")
    add(
        "--steps",
        type=whole("steps", 1),
        default=_STEPS,
        metavar="N",
        help="number of steps, of which the first 3, or half, warm up; default: 15",
    )
    add("--data", default="", metavar="FILE", help="text for a GPT; default: the English of pydoc_data.topics")
    add("--device", type=one_of("device", ("cpu", "cuda")), default="cpu", metavar="NAME", help="cpu or cuda")
    add("--seed", type=whole("seed", 0), default=0, metavar="N", help="seed of weights and data; default: 0")


def _add_ways(add: Callable[..., object]) -> None:
    add("--out", type=Path, default=_OUT, metavar="DIR", help=f"default: {_OUT}")
    add("--json", action="store_true", help="print the results as JSON, not as tables")
    add("--times-only", action="store_true", help="judge nothing and meter neither memory nor traffic")
    add("--unjudged", action="store_true", help="meter, but judge nothing: the oracles of a large model take minutes")
    add(
        "--time-limit",
        type=number("time-limit"),
        default=120.0,
        metavar="S",
        help="limit of one step in seconds; default: 120",
    )


def base_scenario(options: argparse.Namespace, launch: Launch | None = None) -> Scenario:
    """The settings that all cases of a run share.

    Raises:
        UsageError: if text is given for a model that takes none, or if ``--ranks`` differs from the launched ranks.
    """
    launched = launch.world if launch else None
    if launched and options.ranks not in (None, launched):
        raise UsageError(f"--ranks: expected {launched}, as many as were launched, got {options.ranks}; leave it out")
    model = dataclasses.replace(SIZES[options.model], recompute=options.recompute)
    if not isinstance(model, Gpt) and options.data:
        raise UsageError(f"--data: {options.model} takes no text, its samples are synthetic; leave it out")
    return Scenario(
        model=model,
        world=launched or options.ranks or _RANKS,
        dtype=options.dtype,
        steps=options.steps,
        micro_batch=_MICRO_BATCH,
        accumulation=options.accumulation,
        clip=options.clip,
        optimizer=_DYADIC if isinstance(model, Odd) else Optimizer(),
        data=_DATA[model.kind],
        data_path=options.data,
        nvme_path=options.nvme_path,
        device=options.device,
        seed=options.seed,
    )


def warmup(steps: int) -> int:
    """The number of first steps that are not timed."""
    return min(_WARMUP, steps // 2)
