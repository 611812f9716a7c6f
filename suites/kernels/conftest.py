"""Fixtures of the kernel suite."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from zerobench.suites.support.checkout import ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the tests' files, to be made wrong."""
    for name in ("kernels", "engine", "zerobench", "suites"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path
