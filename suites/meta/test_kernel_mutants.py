"""The kernel suite's own power: each C++ kernel that is wrong in one place must fail the property that looks there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import pytest

from engine.native import Kernels, building, cpu
from suites.kernels import test_equality as suite
from suites.kernels.places import Place


@dataclass(frozen=True)
class Mutant:
    """A kernel's source in which ``wrong`` stands for ``right``."""

    name: str
    source: str
    right: str
    wrong: str


_ADAM = [
    Mutant("forgets_decay", "adam.cpp", "master[i] * a.decay", "master[i]"),
    Mutant("forgets_the_scale", "adam.cpp", "gradient[i] * a.factor", "gradient[i]"),
    Mutant("adds_eps_too_early", "adam.cpp", "std::sqrt(v) / a.root2 + a.eps", "(std::sqrt(v) + a.eps) / a.root2"),
    Mutant("rounds_once_more", "adam.cpp", "fmaf(a.weight2 * g, g, ", "fmaf(a.weight2 * (g * g), 1.0f, "),
    Mutant("interpolates_from_the_other_end", "adam.cpp", "weight1 < 0.5f", "weight1 <= 0.5f"),
    Mutant("drops_the_tail_of_the_copy", "adam.cpp", "copy_dtype, i, count);", "copy_dtype, i, count & ~7);"),
]
_SGD = [
    Mutant("forgets_momentum", "sgd.cpp", "momentum_buffer[i] * s.momentum", "momentum_buffer[i]"),
    Mutant("does_not_fuse", "sgd.cpp", "std::fmaf(s.step_size, g, master[i])", "s.step_size * g + master[i]"),
]
_FOLD = [
    Mutant("adds_from_the_last_rank", "fold.cpp", "row_dtype, r * stride", "row_dtype, (world - 1 - r) * stride"),
    Mutant("takes_rows_to_be_dense", "fold.cpp", "row_dtype, r * stride", "row_dtype, r * n"),
    Mutant("forgets_the_accumulator", "fold.cpp", "if (first) {", "if (true) {"),
]
_SUMSQ = [
    Mutant("squares_in_fp32", "sumsq.cpp", "(value) * static_cast<double>(value)", "(value * value)"),
    Mutant("adds_in_another_order", "sumsq.cpp", "low[i] += high[i]", "low[i] += high[width - 1 - i]"),
]
_THREADS = [
    Mutant("forgets_where_a_thread_begins", "pack.cpp", "starts[t] + offset, n", "starts[t], n"),
]
_STREAMS = [
    Mutant(
        "streams_one_too_few", "convert.h", "i < n; ++i) to[i] = from[i];\n}", "i < n - 1; ++i) to[i] = from[i];\n}"
    ),
]
_HALVES = [
    Mutant("cuts_bf16_off", "convert.h", "(bits + 0x7fff + ((bits >> 16) & 1)) >> 16", "bits >> 16"),
    Mutant("rounds_ties_up_in_bf16", "convert.h", "0x7fff + ((bits >> 16) & 1)", "0x8000"),
    Mutant("flushes_subnormals_of_fp16", "convert.h", "(113u << 23) ? subnormal", "(113u << 23) ? 0"),
]
_SEEN_BY: list[tuple[Callable[..., None], list[Mutant]]] = [
    (suite.test_adam_step, _ADAM),
    (suite.test_sgd_step, _SGD),
    (suite.test_fold, _FOLD),
    (suite.test_chunk_sumsq, _SUMSQ),
    (lambda place: suite.test_threads_change_nothing(place, 2), _THREADS),
    (lambda place: suite.test_streaming_changes_nothing(place, 2), _STREAMS),
    (suite.test_every_half_is_widened_and_every_tie_narrowed, _HALVES),
]


@dataclass(frozen=True)
class _Build(Place):
    library: Kernels

    def kernels(self) -> Kernels:
        return self.library


@pytest.mark.parametrize(
    ("seen_by", "mutant"),
    [pytest.param(seen_by, mutant, id=mutant.name) for seen_by, mutants in _SEEN_BY for mutant in mutants],
)
def test_wrong_kernel_is_caught(seen_by: Callable[..., None], mutant: Mutant, tmp_path: Path) -> None:
    """The property fails, and says which of the kernel's arguments has the wrong bits."""
    build = _Build("plain", _built(mutant, tmp_path))
    with pytest.raises((AssertionError, ExceptionGroup)) as caught:
        seen_by(build)
    failures = caught.value.exceptions if isinstance(caught.value, ExceptionGroup) else [caught.value]
    assert any(str(failure).startswith("plain, argument ") for failure in failures), failures


def _built(mutant: Mutant, folder: Path) -> Kernels:
    """The plain kernels with the mutant's line in them, compiled quickly."""
    copy = folder / "kernels"
    shutil.copytree(building.sources(), copy)
    source = copy / "cpu" / mutant.source
    text = source.read_text(encoding="utf-8")
    assert mutant.right in text, f"{mutant.source} has no {mutant.right!r}: the mutant must follow the kernel"
    source.write_text(text.replace(mutant.right, mutant.wrong), encoding="utf-8")
    with (
        mock.patch.object(building, "sources", return_value=copy),
        mock.patch.dict("os.environ", ZEROBENCH_CACHE=str(folder)),
    ):
        recipe = cpu.recipe("plain")
        whole = copy / "cpu" / "whole.cpp"  # one source takes the compiler less than half as long as five
        whole.write_text("".join(f'#include "{path.name}"\n' for path in recipe.sources), encoding="utf-8")
        return Kernels(building.load(replace(recipe, flags=(*recipe.flags, "-O1"), sources=(whole,))), "cpu")
