"""``python -m zerobench.suites.bench.gpu``: measure this machine's GPU part by part, and render the report."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch

from zerobench.suites.bench.gpu.parts import Part, all_parts, run
from zerobench.suites.bench.runs import world_size

#: Seconds for a part; then it ends, and its cases so far remain.
LIMIT = 480.0


def main(arguments: list[str] | None = None) -> int:
    """Run the parts that are named, or all that are not done; 0 if all of them were measured."""
    given = parser().parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        print("no GPU here: torch.cuda.is_available() is False; --device cpu rehearses every part", file=sys.stderr)
        return 2
    known = {part.name: part for part in all_parts(given.quick, given.device, world_size(given.device))}
    if unknown := [name for name in given.parts if name not in known]:
        print(f"no such part: {', '.join(unknown)} (known: {', '.join(known)})", file=sys.stderr)
        return 2
    if given.list:
        print("\n".join(known))
        return 0
    chosen = [known[name] for name in given.parts] or list(known.values())
    folder = given.out / "parts"
    folder.mkdir(parents=True, exist_ok=True)
    if given.here:
        measured = [run(part, given.device, folder, _command(part, given), not given.unjudged) for part in chosen]
        return 0 if all(measured) else 1
    failed = [part.name for part in chosen if not (_done(folder, part) or _alone(part, folder, given))]
    failed += [] if _report(given.out) else ["report"]
    print(f"not measured: {', '.join(failed)}" if failed else "all parts are measured")
    return 1 if failed else 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(prog="python -m zerobench.suites.bench.gpu", description=__doc__)
    options.add_argument("parts", nargs="*", metavar="PART", help="default: all that are not done")
    options.add_argument("--out", type=Path, default=Path("zerobench-gpu"), help="default: zerobench-gpu")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="cpu rehearses; default: cuda")
    options.add_argument("--quick", action="store_true", help="the small grid")
    options.add_argument("--unjudged", action="store_true", help="run no oracles: minutes less for each large model")
    options.add_argument("--list", action="store_true", help="print the names of the parts, and run nothing")
    options.add_argument("--here", action="store_true", help="run the named parts in this process, without a report")
    return options


def _command(part: Part, given: argparse.Namespace) -> str:
    return " ".join(["python -m zerobench.suites.bench.gpu", part.name, *_flags(given)])


def _flags(given: argparse.Namespace) -> list[str]:
    """The options that decide what is measured."""
    return [*(["--quick"] if given.quick else []), *(["--unjudged"] if given.unjudged else [])]


def _done(folder: Path, part: Part) -> bool:
    return (folder / f"{part.name}.done").exists()


def _alone(part: Part, folder: Path, given: argparse.Namespace) -> bool:
    """Run a part in a process of its own: its memory ends with it, and a crash ends nothing else."""
    options = ["--here", "--out", str(given.out), "--device", given.device, *_flags(given)]
    print(f"{part.name} ...", flush=True)
    with (folder / f"{part.name}.log").open("w", encoding="utf-8") as log:
        command = [sys.executable, "-m", "zerobench.suites.bench.gpu", part.name, *options]
        try:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=LIMIT, check=False).returncode
        except subprocess.TimeoutExpired:
            log.write(f"\nended after {LIMIT:.0f} s\n")
            code = 1
    print(f"{part.name}: {'measured' if code == 0 else f'see {log.name}'}", flush=True)
    return code == 0


def _report(out: Path) -> bool:
    """Render the results of all parts so far, also after a failure; whether there are any."""
    results = [str(path) for path in sorted((out / "parts").glob("*.json"))]
    if not results:
        return False
    command = [sys.executable, "-m", "zerobench", "report", *results, "--out", str(out)]
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
