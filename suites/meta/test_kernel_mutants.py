"""The kernel suite's own power: if a kernel is wrong in one place, the property for that place must fail.

The CUDA kernels among them are simulated.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from unittest import mock

import pytest

from zerobench.engine.native import Kernels, building, cpu
from zerobench.suites.kernels import simulated
from zerobench.suites.kernels import test_equality as suite
from zerobench.suites.kernels.places import Place


@dataclass(frozen=True)
class Mutant:
    """A kernel's source with ``wrong`` in the place of ``right``."""

    name: str
    source: str
    right: str
    wrong: str

    @property
    def folder(self) -> str:
        """cpu or cuda."""
        return Path(self.source).parts[0]

    def can_be_beside(self, other: Mutant) -> bool:
        """Whether one build can have both, and neither property sees the other's mutant."""
        headers = any(mutant.source.endswith("h") for mutant in (self, other))
        return self.folder == other.folder and self.source != other.source and not headers


_ADAM = [
    Mutant("forgets_decay", "cpu/adam.cpp", "master[i] * a.decay", "master[i]"),
    Mutant("forgets_the_scale", "cpu/adam.cpp", "gradient[i] * a.factor", "gradient[i]"),
    Mutant("adds_eps_too_early", "cpu/adam.cpp", "std::sqrt(v) / a.root2 + a.eps", "(std::sqrt(v) + a.eps) / a.root2"),
    Mutant("rounds_once_more", "cpu/adam.cpp", "fmaf(a.weight2 * g, g, ", "fmaf(a.weight2 * (g * g), 1.0f, "),
    Mutant("interpolates_from_the_other_end", "cpu/adam.cpp", "weight1 < 0.5f", "weight1 <= 0.5f"),
    Mutant("drops_the_tail_of_the_copy", "cpu/adam.cpp", "copy_dtype, i, count);", "copy_dtype, i, count & ~7);"),
    Mutant("forgets_the_scale_on_cuda", "cuda/adam.cu", "__fmul_rn(widen(g.v[k]), times)", "widen(g.v[k])"),
    Mutant("updates_without_a_factor", "cpu/adam.cpp", "if (!std::isnan(adam.factor)) update", "update"),
    Mutant("updates_without_a_factor_on_cuda", "cuda/adam.cu", "if (!isnan(times))", "if (true)"),
    Mutant("takes_the_first_scalars_for_all_runs", "cpu/adam.cpp", "bounds += 3, scalars += 8", "bounds += 3"),
    Mutant("takes_the_first_factor_on_cuda", "cuda/adam.cu", "factors + parameter", "factors"),
    Mutant("drops_the_tail_on_cuda", "cuda/values.cuh", "k < n; ++k) operation", "k < n - 1; ++k) operation"),
]
_SGD = [
    Mutant("forgets_momentum", "cpu/sgd.cpp", "momentum_buffer[i] * s.momentum", "momentum_buffer[i]"),
    Mutant("does_not_fuse", "cpu/sgd.cpp", "std::fmaf(s.step_size, g, master[i])", "s.step_size * g + master[i]"),
    Mutant("forgets_the_l2_on_cuda", "cuda/sgd.cu", "l2 != 0.0f ? __fmaf_rn(l2, p.v[k], scaled) : scaled", "scaled"),
]
_FOLD = [
    Mutant("adds_from_the_last_rank", "cpu/fold.cpp", "add<kRows>(r * stride", "add<kRows>((world - 1 - r) * stride"),
    Mutant("takes_rows_to_be_dense", "cpu/fold.cpp", "world, stride, first != 0", "world, n, first != 0"),
    Mutant("forgets_the_accumulator", "cpu/fold.cpp", "if (!first) std::copy_n", "if (false) std::copy_n"),
    Mutant("adds_from_the_last_rank_on_cuda", "cuda/fold.cu", "rows + (r + n)", "rows + (world - 1 - r - n)"),
    Mutant("leaves_rows_out_on_cuda", "cuda/fold.cu", "case 3: add<3>", "case 3: add<2>"),
]
_SUMSQ = [
    Mutant("squares_in_fp32", "cpu/sumsq.cpp", "(value) * static_cast<double>(value)", "(value * value)"),
    Mutant("adds_in_another_order", "cpu/sumsq.cpp", "low[i] += high[i]", "low[i] += high[width - 1 - i]"),
    Mutant(
        "takes_rows_as_they_come_on_cuda",
        "cuda/sumsq.cu",
        "__brevll(static_cast<unsigned long long>(count)) >> (64 - bits)",
        "count",
    ),
    Mutant(
        "halves_lanes_from_the_other_end_on_cuda",
        "cuda/sumsq.cu",
        "width = kWarp / 2; width > 0; width /= 2",
        "width = 1; width < kWarp; width *= 2",
    ),
    Mutant("joins_rows_that_are_neighbours_on_cuda", "cuda/sumsq.cu", "rows + kRows / M)", "rows + M / 2)"),
]
_PACK = [
    Mutant("drops_the_tail_of_a_tile_on_cuda", "cuda/pack.cu", "if (by_vector < n) cast<1>", "if (false) cast<1>"),
    Mutant("forgets_a_turn_of_a_tile_on_cuda", "cuda/pack.cu", "t < kTurns; ++t", "t < kTurns - 1; ++t"),
]
_THREADS = [
    Mutant("forgets_where_a_thread_begins", "cpu/pack.cpp", "starts[t] + offset, n", "starts[t], n"),
    Mutant("forgets_where_a_block_begins_on_cuda", "cuda/pack.cu", "table.starts[t] + offset", "table.starts[t]"),
]
_TREE = [
    Mutant("adds_neighbours", "cpu/norm.cpp", "sums[i] += sums[i + half]", "sums[i] = sums[2 * i] + sums[2 * i + 1]"),
    Mutant("adds_rows_crosswise_on_cuda", "cuda/norm.cu", "rows[m + width])", "rows[2 * width - 1 - m])"),
]
_CLIP = [
    Mutant("clips_without_epsilon", "cpu/norm.cpp", " / divisor + 1e-6", " / divisor"),
    Mutant("updates_inactive_parameters_on_cuda", "cuda/norm.cu", "active[i] && !*overflow", "!*overflow"),
]
_STREAMS = [
    Mutant(
        "streams_one_too_few",
        "cpu/convert.h",
        "static_cast<size_t>(bytes - i));\n}",
        "static_cast<size_t>(bytes - i < 2 ? 0 : bytes - i - 2));\n}",
    ),
]
_HALVES = [
    Mutant("cuts_bf16_off", "cpu/convert.h", "(bits + 0x7fff + ((bits >> 16) & 1)) >> 16", "bits >> 16"),
    Mutant("rounds_ties_up_in_bf16", "cpu/convert.h", "0x7fff + ((bits >> 16) & 1)", "0x8000"),
    Mutant("flushes_subnormals_of_fp16", "cpu/convert.h", "(113u << 23) ? subnormal", "(113u << 23) ? 0"),
]
_SEEN_BY: list[tuple[Callable[..., None], list[Mutant]]] = [
    (suite.test_adam_step, _ADAM),
    (suite.test_sgd_step, _SGD),
    (suite.test_fold, _FOLD),
    (suite.test_chunk_sumsq, _SUMSQ),
    (suite.test_tree_sum, _TREE),
    (suite.test_clip_factors, _CLIP),
    (suite.test_pack_takes_more_than_one_launch, _PACK),
    (lambda place: suite.test_threads_change_nothing(place, 2), _THREADS),
    (lambda place: suite.test_streaming_changes_nothing(place, 2), _STREAMS),
    (suite.test_every_half_is_widened_and_every_tie_narrowed, _HALVES),
]


_MUTANTS = [(seen_by, mutant) for seen_by, mutants in _SEEN_BY for mutant in mutants]


@dataclass(frozen=True)
class _Build(Place):
    library: Kernels

    def kernels(self) -> Kernels:
        return self.library


def _together() -> list[list[Mutant]]:
    """The mutants by builds, which take most of the time: a build has one of each source, or one of a header alone."""
    builds: list[list[Mutant]] = []
    for _, mutant in _MUTANTS:
        for build in builds:
            if all(mutant.can_be_beside(other) for other in build):
                build.append(mutant)
                break
        else:
            builds.append([mutant])
    return builds


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mutant], _Build]:
    """The build that has this mutant."""

    @cache
    def kernels(number: int) -> _Build:
        return _built(_together()[number], tmp_path_factory.mktemp("mutants"))

    return lambda mutant: kernels(next(i for i, build in enumerate(_together()) if mutant in build))


@pytest.mark.rotating
@pytest.mark.parametrize(("seen_by", "mutant"), [pytest.param(*each, id=each[1].name) for each in _MUTANTS])
def test_wrong_kernel_is_caught(
    seen_by: Callable[[Place], None], mutant: Mutant, built: Callable[[Mutant], _Build]
) -> None:
    """The property fails, and names the kernel's argument with the wrong bits."""
    build = built(mutant)
    with pytest.raises((AssertionError, ExceptionGroup)) as caught:
        seen_by(build)
    failures = caught.value.exceptions if isinstance(caught.value, ExceptionGroup) else [caught.value]
    assert any(str(failure).startswith(f"{build.name}, argument ") for failure in failures), failures


def _built(mutants: list[Mutant], folder: Path) -> _Build:
    """The kernels with these lines in them, compiled quickly."""
    copy = folder / "kernels"
    shutil.copytree(building.sources(), copy)
    for mutant in mutants:
        source = copy / mutant.source
        text = source.read_text(encoding="utf-8")
        assert mutant.right in text, f"{mutant.source} has no {mutant.right!r}: the mutant must follow the kernel"
        source.write_text(text.replace(mutant.right, mutant.wrong), encoding="utf-8")
    with (
        mock.patch.object(building, "sources", return_value=copy),
        mock.patch.dict("os.environ", ZEROBENCH_CACHE=str(folder)),
    ):
        if mutants[0].folder == "cuda":
            return _Build("simulated", simulated.Simulated(simulated.library()))
        return _Build("plain", _plain(copy / "cpu"))


def _plain(folder: Path) -> Kernels:
    recipe = cpu.recipe("plain")
    whole = folder / "whole.cpp"  # one source takes the compiler less than half as long as five
    whole.write_text("".join(f'#include "{path.name}"\n' for path in recipe.sources), encoding="utf-8")
    return Kernels(building.load(replace(recipe, flags=(*recipe.flags, "-O1"), sources=(whole,))), "cpu")
