"""Building: once, verified, and with a clear end in each failure."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from zerobench.engine import KernelError
from zerobench.engine.native import building, cpu, cuda, implementation, on_cpu
from zerobench.engine.native.building import Recipe, build
from zerobench.engine.ops.folding import fold
from zerobench.ranks import Pool
from zerobench.suites.support.checkout import ROOT

#: Stands for a compiler: notes each run in $0.runs, takes its time, and writes its arguments where -o says.
_COMPILER = """#!/bin/sh
case " $* " in *" --version "*) echo "fake 1.0"; exit 0 ;; esac
echo run >> "$0.runs"
sleep ${SLOW:-0.2}
for out; do :; done
echo "$@" > "$out"
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test."""
    monkeypatch.setenv("ZEROBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _recipe(folder: Path, script: str = _COMPILER) -> Recipe:
    compiler, source = folder / "compiler", folder / "source.cpp"
    compiler.write_text(script, encoding="utf-8")
    compiler.chmod(0o755)
    source.write_text("int zero;", encoding="utf-8")
    return Recipe("test", "the test", (str(compiler),), ("-O3",), (source,), ())


def _runs(recipe: Recipe) -> int:
    log = Path(recipe.compiler[0] + ".runs")
    return len(log.read_text(encoding="utf-8").splitlines()) if log.exists() else 0


def _build(group: dist.ProcessGroup, recipe: Recipe, cache: str) -> str:
    with mock.patch.dict(os.environ, ZEROBENCH_CACHE=cache):
        return str(build(recipe))


def test_ranks_that_start_at_once_build_once(pool: Pool, tmp_path: Path, cache: Path) -> None:
    recipe = _recipe(tmp_path)
    built = pool.run(_build, recipe, str(cache), world=4)
    assert len(set(built)) == 1
    assert Path(built[0]).exists()
    assert _runs(recipe) == 1


def test_says_what_it_builds_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = _recipe(tmp_path)
    build(recipe)
    assert re.fullmatch(r"zerobench: building the test with \S+ \.\.\. \d+\.\d s\n", capsys.readouterr().err)
    build(recipe)
    assert capsys.readouterr().err == ""
    assert _runs(recipe) == 1


def test_key(tmp_path: Path) -> None:
    """Another source, header, flag or compiler is another library."""
    recipe = _recipe(tmp_path)
    paths = {recipe.library}
    Path(recipe.compiler[0]).write_text(_COMPILER.replace("1.0", "1.1"), encoding="utf-8")
    paths.add(replace(recipe).library)  # a recipe asks its compiler once
    recipe.sources[0].write_text("int one;", encoding="utf-8")
    paths.add(recipe.library)
    paths.add(Recipe("test", "the test", recipe.compiler, ("-O2",), recipe.sources, ()).library)
    paths.add(Recipe("test", "the test", recipe.compiler, ("-O2",), recipe.sources, recipe.sources).library)
    assert len(paths) == 5


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"\0" + b[1:], lambda b: b + b" ", lambda b: b""])
def test_damaged_library_is_built_again(tmp_path: Path, damage: object) -> None:
    recipe = _recipe(tmp_path)
    library = build(recipe)
    whole = library.read_bytes()
    library.write_bytes(damage(whole))  # type: ignore[operator]
    assert build(recipe).read_bytes() == whole
    assert _runs(recipe) == 2


def test_damaged_note_is_written_again(tmp_path: Path) -> None:
    recipe = _recipe(tmp_path)
    note = build(recipe).with_suffix(".json")
    note.write_text("{", encoding="utf-8")
    build(recipe)
    build(recipe)
    assert _runs(recipe) == 2


def test_failure_shows_what_the_compiler_said(tmp_path: Path, cache: Path) -> None:
    recipe = _recipe(tmp_path, _COMPILER.replace("sleep", 'echo "source.cpp:1: no good" >&2; exit 3; sleep'))
    with pytest.raises(KernelError, match=r"(?s)building the test failed:.*-O3.*source.cpp:1: no good"):
        build(recipe)
    assert not list(cache.glob("*.so"))
    build(_recipe(tmp_path))


@pytest.mark.rotating
def test_killed_while_building(tmp_path: Path, cache: Path) -> None:
    """A killed process's files neither block nor deceive the next."""
    recipe = _recipe(tmp_path)
    program = f"import sys; from {__name__} import Path, _recipe, build; build(_recipe(Path(sys.argv[1])))"
    environment = {**os.environ, "SLOW": "60"}
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, env=environment, start_new_session=True
    ) as process:
        while not _runs(recipe):
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    assert not list(cache.glob("*.so"))
    build(recipe)
    assert _runs(recipe) == 2


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package to install and the definitions' variable; an operation does not fall back by
    itself."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    advice = r"no C\+\+ compiler was found \(looked for no-such-compiler\).*install one.*ZEROBENCH_KERNELS=torch"
    with pytest.raises(KernelError, match=advice):
        cpu.recipe("plain")
    on_cpu.cache_clear()
    try:
        with pytest.raises(KernelError, match=advice):
            fold(torch.zeros(1), torch.ones(2, 1), first=True)
    finally:
        on_cpu.cache_clear()


def test_compiler_of_several_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in build tools' CXX: a launcher stands before the compiler, which also gets the question for its version."""
    launcher, inner = tmp_path / "launcher", _recipe(tmp_path)
    launcher.write_text('#!/bin/sh\nexec "$@"\n', encoding="utf-8")
    launcher.chmod(0o755)
    monkeypatch.setenv("CXX", f"{launcher} {inner.compiler[0]}")
    recipe = cpu.recipe("plain")
    assert recipe.compiler == (str(launcher), *inner.compiler)
    assert "fake 1.0" in recipe.version
    build(recipe)
    assert _runs(inner) == 1


def test_quotation_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++ '-O3")
    with pytest.raises(KernelError, match=r"CXX is .*No closing quotation; set it to words"):
        cpu.recipe("plain")


def test_flags_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flags that nvcc would add from its environment are in the key and come first, or are not passed at all."""
    (tmp_path / "bin").mkdir()
    nvcc = tmp_path / "bin" / "nvcc"
    script = _COMPILER.replace('echo "$@"', 'echo "$@" "[$NVCC_PREPEND_FLAGS$NVCC_APPEND_FLAGS]"')
    nvcc.write_text(script, encoding="utf-8")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    plain = cuda.recipe("sm_90")
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "-ccbin g++")
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "--use_fast_math")
    recipe = cuda.recipe("sm_90")
    assert recipe.library != plain.library
    told = build(recipe).read_text(encoding="utf-8")
    assert told.startswith(f"-ccbin g++ {recipe.flags[0]}")
    assert told.endswith(" []\n")


def test_definitions_need_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    total = torch.zeros(1)
    with mock.patch("zerobench.engine.ops.operators.implementation", return_value="torch"):
        fold(total, torch.ones(2, 1), first=True)
    assert total.item() == 2


def test_compiler_that_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"--version failed.*ZEROBENCH_KERNELS=torch"):
        build(_recipe(tmp_path, "#!/bin/sh\nexit 1\n"))


def test_library_that_does_not_load(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"the test cannot be loaded: .*; set ZEROBENCH_CACHE"):
        building.load(_recipe(tmp_path))


def test_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ZEROBENCH_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(KernelError, match=r"cannot be kept in .*set ZEROBENCH_CACHE"):
        build(_recipe(tmp_path))


def test_cache_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ZEROBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert building.cache() == tmp_path / "zerobench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert building.cache() == tmp_path / ".cache" / "zerobench"


def test_unknown_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEROBENCH_KERNELS", "natve")
    with pytest.raises(KernelError, match=r"'natve'.*did you mean 'native'\? \(known: native, torch\)"):
        implementation.__wrapped__()


def _nvcc() -> tuple[str, ...] | None:
    try:
        return cuda.recipe("sm_90").compiler
    except KernelError:
        return None


@pytest.mark.skipif(_nvcc() is None, reason="there is no nvcc")
def test_fast_math_from_outside_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flags that bits depend on come last."""
    source = tmp_path / "small.cu"
    source.write_text("__global__ void f(float* x) { *x = sqrtf(*x / x[1] * x[2] + x[3]); }", encoding="utf-8")
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "--use_fast_math")
    recipe = cuda.recipe("sm_90")
    flags = [flag for flag in recipe.flags if flag != "-shared"]
    ptx = tmp_path / "small.ptx"
    building._compile(replace(recipe, flags=(*flags, "--ptx"), sources=(source,)), ptx)
    written = ptx.read_text(encoding="utf-8")
    assert "div.rn.f32" in written
    assert "sqrt.rn.f32" in written
    assert not any(name in written for name in (".ftz", ".approx", "fma."))


@pytest.mark.rotating
@pytest.mark.skipif(_nvcc() is None, reason="there is no nvcc")
@pytest.mark.parametrize(
    "architecture", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("sm_80", "sm_90")), "newest"]
)
def test_cuda_compiles_without_warnings(architecture: str, tmp_path: Path) -> None:
    """Every .cu for two known architectures and the newest that this nvcc knows; a warning is an error."""
    recipe = cuda.recipe("sm_90")
    if architecture == "newest":
        listed = subprocess.run([*recipe.compiler, "--list-gpu-code"], capture_output=True, text=True, check=True)
        architecture = max(listed.stdout.split(), key=lambda name: int(name.removeprefix("sm_")))
    flags = [flag for flag in cuda.recipe(architecture).flags if flag != "-shared"]
    whole = tmp_path / "whole.cu"  # CUDA's own headers take most of the time
    whole.write_text("".join(f'#include "{path}"\n' for path in recipe.sources), encoding="utf-8")
    assert len(recipe.sources) == 5
    command = [*recipe.compiler, *flags, "-Werror", "all-warnings", "--cubin", str(whole)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "whole.cubin").exists()
