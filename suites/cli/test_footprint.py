"""The harness's own memory, beside what torch takes in any program."""

from __future__ import annotations

import resource
import subprocess
import sys

import torch.distributed as dist

from zerobench.ranks import Pool

_LIMIT = 300 * 2**20
_PEAK = "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024"
_TORCH = f"import resource, torch, torch.distributed, torch.distributed.fsdp, torch._dynamo; print({_PEAK})"
_HARNESS = (
    "import resource, sys; from zerobench.cli import main; sys.stdout = sys.stderr; "
    "main(['run', '--model', 'nano', '--steps', '4', '--stages', '0,3', '--out', sys.argv[1]]); "
    "assert 'torch._dynamo' not in sys.modules, 'the parent loads a compiler it has no use for'; "
    f"sys.stdout = sys.__stdout__; print({_PEAK})"
)


def _peak(program: str, *arguments: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    return int(done.stdout)


def peak_of_rank(group: dist.ProcessGroup) -> int:
    """The most bytes that this process held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_peak_beside_torch(tmp_path: object) -> None:
    """The parent of a whole run, and a rank before there is a subject, together take less than 300 MB."""
    torch_alone = _peak(_TORCH)
    with Pool(1) as pool:
        rank = pool.run(peak_of_rank)[0] - torch_alone
    parent = _peak(_HARNESS, str(tmp_path)) - torch_alone
    assert max(0, parent) + max(0, rank) < _LIMIT, f"parent {parent:,} bytes, rank {rank:,} bytes"
