"""The harness's own memory, beside torch's in any program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from zerobench.ranks import Pool
from zerobench.suites.support.forked import LIMIT

_LIMIT = 300 * 2**20
_STATUS = Path("/proc/self/status")
_TELL = f"print(open('{_STATUS}').read())"
_TORCH = f"import torch, torch.distributed, torch.distributed.fsdp, torch._dynamo; {_TELL}"
_HARNESS = (
    "import sys; from zerobench.cli.commands import main; sys.stdout = sys.stderr; "
    "main(['run', '--model', 'nano', '--steps', '2', '--stages', '3', '--out', sys.argv[1]]); "
    "assert 'torch._dynamo' not in sys.modules, 'the parent loads a compiler it has no use for'; "
    f"sys.stdout = sys.__stdout__; {_TELL}"
)


def _peak(status: str) -> int:
    """A process's peak of resident bytes; getrusage would report at least its parent's peak."""
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def _ran(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True).stdout


def status(group: dist.ProcessGroup) -> str:
    """The system's status of a rank's process."""
    return _STATUS.read_text(encoding="utf-8")


@pytest.fixture
def torch_alone() -> int:
    """The peak of a process that only loads torch, in bytes."""
    return _peak(_ran(_TORCH))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's own peak")
def test_peak_beside_torch(torch_alone: int, tmp_path: Path) -> None:
    """The parent of a whole run, and a rank before its first subject, together take less than 300 MB."""
    with Pool(1) as pool:
        rank = _peak(pool.run(status)[0]) - torch_alone
    parent = _peak(_ran(_HARNESS, str(tmp_path))) - torch_alone
    assert max(0, parent) + max(0, rank) < _LIMIT, f"parent {parent:,} bytes, rank {rank:,} bytes"
