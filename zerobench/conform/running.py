"""Running: the equivalence suite in a process of its own for each engine; its lines outlive an interruption."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from zerobench import __version__, subjects
from zerobench.errors import Unmeasured

#: By the folder of the run: a file for each engine and profile.
SHARDS = "shards"
#: pytest's exit codes if all properties held, if some failed, and if all have run before.
_ENDS = (0, 1, 5)
#: The ends of the names of an engine's files that decide what it computes.
_SOURCES = (".py", ".pyx", ".c", ".cpp", ".cu", ".cuh", ".h", ".so")


def examine(subject: str, profile: str, folder: Path, extra: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The header of an engine, then a record for each property; runs those that have none yet.

    Raises:
        UsageError: if there is no such engine.
        Unmeasured: if pytest did not come to its end, or failed beside the properties; those that ran are kept.
    """
    header = {"subject": subject, "profile": profile, "zerobench": __version__, "versions": versions(subject)}
    shard = folder / SHARDS / f"{slug(subject)}.{profile}.jsonl"
    _begin(shard, header | {"code": _code(subject)})
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--pyargs",
        "zerobench.suites.equivalence",
        "-q",
        "-n",
        "0",
        "--no-header",
    ]
    command += ["--subject", subject, "--hypothesis-profile", profile, "--tb", "no"]
    command += ["-p", "zerobench.suites.support.conformance", "--conformance", str(shard.absolute()), *extra]
    kept = len(read(shard))
    code = subprocess.run(command, check=False).returncode
    found = read(shard)
    if code not in _ENDS or (code == 1 and not any(record["failure"] for record in found[kept:])):
        raise Unmeasured(
            f"{subject}: pytest ended with exit code {code}, and no property says why; its {len(found) - 1} finished "
            f"properties are kept in {shard}: the same command goes on"
        )
    return [header, *found[1:]]


def _begin(shard: Path, header: dict[str, Any]) -> None:
    """Keep the lines of the same engine, code and versions; an incomplete last line is dropped."""
    kept = read(shard) if shard.exists() else []
    lines = kept if kept[:1] == [header] else [header]
    shard.parent.mkdir(parents=True, exist_ok=True)
    temporary = shard.with_suffix(".new")
    temporary.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    temporary.replace(shard)


def read(shard: Path) -> list[dict[str, Any]]:
    """The complete lines of a shard."""
    lines = shard.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


def versions(subject: str) -> dict[str, str]:
    """The versions of torch and of the engine's own package."""
    own = subjects.load(subject).distribution
    return {name: version(name) for name in ("torch", own) if name}


def _code(subject: str) -> str:
    """A digest of the engine's source: the files of its package, or those beside its file."""
    module = sys.modules[subjects.load(subject).__module__]
    package = sys.modules[module.__name__.partition(".")[0]]
    paths = list(getattr(package, "__path__", ())) or [str(Path(module.__file__ or "").parent)]
    found = hashlib.sha256()
    for path in paths:
        for folder, inner, files in os.walk(path, followlinks=True):
            inner[:] = sorted(inner) if hasattr(package, "__path__") else []
            for file in (Path(folder, name) for name in sorted(files) if name.endswith(_SOURCES)):
                found.update(f"{file.relative_to(path)}\0".encode() + file.read_bytes())
    return found.hexdigest()


def slug(text: str) -> str:
    """The text as part of a file's name or of a link."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
