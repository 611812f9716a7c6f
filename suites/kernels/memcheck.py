"""Kernels touch memory only inside their tensors: run by ``nox -s kernels``, or if it is named, never by default.

Address sanitizer stops the equality tests at the first byte outside a tensor that the CPU's kernels, or the simulated
CUDA kernels, read or write. On a GPU compute-sanitizer does (test_cuda.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zerobench.engine.native import building
from zerobench.suites.support.checkout import ROOT, front_of_path

_FOUND = "ERROR: AddressSanitizer: heap-buffer-overflow"


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables by which kernels are built with address sanitizer, its runtime loaded before Python."""
    folder = tmp_path_factory.mktemp("sanitized")
    compiler = building.find(["g++"], "g++ with address sanitizer")
    wrapper = folder / "c++"
    wrapper.write_text(f'#!/bin/sh\nexec {compiler} -fsanitize=address "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    asked = [compiler, "-print-file-name=libasan.so"]
    runtime = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    options = "detect_leaks=0:verify_asan_link_order=0"
    return {"CXX": str(wrapper), "ZEROBENCH_CACHE": str(folder), "LD_PRELOAD": runtime, "ASAN_OPTIONS": options}


def _equality_tests(tree: Path, chosen: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-s", "-p", "no:cacheprovider", "-k", chosen]
    return subprocess.run(
        [*command, "suites/kernels/test_equality.py"],
        cwd=tree,
        env={**os.environ, **variables, **front_of_path(tree)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_kernels_touch_nothing_else(sanitized: dict[str, str]) -> None:
    done = _equality_tests(ROOT, "not cuda", sanitized)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("source", "right", "wrong", "chosen"),
    [
        ("cuda/values.cuh", "if (i + W <= n) {", "if (i < n) {", "simulated and sgd"),
        ("cuda/sumsq.cu", "if (!kShort || i < chunk) ", "", "simulated and sumsq"),
        ("cpu/fold.cpp", "line<kRows>(start, stop - start);", "line<kRows>(start, kLine);", "plain and fold"),
    ],
    ids=["tail on cuda", "short chunk on cuda", "tail on the cpu"],
)
def test_one_element_too_many_is_seen(
    tree: Path, sanitized: dict[str, str], source: str, right: str, wrong: str, chosen: str
) -> None:
    path = tree / "kernels" / source
    text = path.read_text(encoding="utf-8")
    assert right in text
    path.write_text(text.replace(right, wrong), encoding="utf-8")
    done = _equality_tests(tree, chosen, sanitized)
    assert done.returncode != 0
    assert _FOUND in done.stdout + done.stderr, done.stdout + done.stderr
