"""Whole weights: from an engine at every stage, and from a checkpoint without an engine."""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import zerobench
from zerobench.cli.commands import main
from zerobench.driver import run_step, start, to_cpu
from zerobench.engine.checkpoint.offline import read_weights
from zerobench.engine.config.schema import DTYPES
from zerobench.judge.command import ReplayCommand
from zerobench.oracles.rules import state_keys
from zerobench.scenario import Scenario
from zerobench.subjects.reference import Reference
from zerobench.suites.api.checkpoint import saved
from zerobench.suites.support import safetensors
from zerobench.suites.support.strategies import drawn, scenarios
from zerobench.suites.support.trials import Trials
from zerobench.workload import models

State = dict[str, Tensor]


def _written(
    group: dist.ProcessGroup, name: str, scenario: Scenario, directory: Path
) -> tuple[State, State, list[str], State | None, set[str]]:
    """One rank's training; what it reads, 16-bit and fp32, the names of its state dict, its whole state dict, and the
    names of the one without frozen parameters."""
    subject = start(Reference, scenario, group)
    assert isinstance(subject, Reference)
    every = subject.model.named_parameters(remove_duplicate=False)
    frozen = {name for name, parameter in every if not parameter.requires_grad}
    for index in range(scenario.steps):
        run_step(subject, scenario, index, dist.get_rank(group))
    subject.save(directory)
    subject.engine.save_16bit_model(directory, "whole.safetensors")
    whole = subject.engine._zero3_consolidated_16bit_state_dict()
    trained = subject.engine._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters=True)
    names = [*subject.model.state_dict()]
    if trained is not None:
        assert trained.keys() == set(names) - frozen
    found = to_cpu(subject.model_parameters()), to_cpu(subject.parameters()), names, whole, set(names) - frozen
    subject.close()
    return found


@drawn(st.tuples(scenarios(steps=1, reads=()), st.sampled_from(["fp32", "bf16", "fp16"])), share=0.1)
def test_files_of_whole_weights(reference: Trials, scenario: tuple[Scenario, str]) -> None:
    """Both files, and the state dict on rank 0, have the values that every rank reads, in the parameter's shape.
    Without frozen parameters the others keep all their names, and buffers are there."""
    one, dtype = scenario
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        by_rank = reference.ask(ReplayCommand(one, "reference"), _written, directory)
        trained, masters, names, whole, unfrozen = by_rank[0]
        assert [each[3] is None for each in by_rank] == [False] + [True] * (one.world - 1)
        assert whole is not None
        assert whole.keys() == set(names)
        written, others = safetensors.read(directory / "whole.safetensors")
        assert written.keys() | others.keys() - {"format"} == whole.keys()
        zerobench.export_checkpoint(directory, directory / "exported.safetensors", dtype=dtype)
        exported, _ = safetensors.read(directory / "exported.safetensors")
        assert read_weights(directory).keys() == set(names)
        assert read_weights(directory, frozen=False).keys() == unfrozen
        assert zerobench.verify_checkpoint(directory) > 0
        described = zerobench.describe_checkpoint(directory)
    _demand_closed_forms(one, described)
    for name, value in trained.items():
        _same(written[name], value)
        _same(whole[name], value)
        precise = masters.get(name, value)
        _same(exported[name], precise.to(DTYPES[dtype]))


def _demand_closed_forms(scenario: Scenario, described: dict[str, Any]) -> None:
    """Each element is in the checkpoint once, without padding, and the buffers once for each rank."""
    model = models.shapes(scenario)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    buffers = sum(each.nbytes for each in model.buffers())
    states = {"master", *state_keys(scenario.optimizer)}
    expected = {**dict.fromkeys(states, 4 * trained), "buffer": scenario.world * buffers}
    expected["frozen"] = frozen * DTYPES[scenario.dtype].itemsize
    found = dict(described["bytes"])
    assert found.pop("rng") == scenario.world * (torch.get_rng_state().numel() + 8 * (626 + 627))
    assert found == {kind: size for kind, size in expected.items() if size}
    assert sum(described["files"].values()) == described["header_bytes"] + sum(described["bytes"].values())


def _same(one: Tensor, other: Tensor) -> None:
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The three actions, and their errors, each one line."""
    saved.save_twice(tmp_path)
    (tmp_path / ".global_step3.saving-0").mkdir()
    assert main(["checkpoint", "inspect", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "steps       2\n" in said
    assert "parameters  473, trained in bf16\n" in said
    assert "left over   .global_step3.saving-0" in said
    assert main(["checkpoint", "inspect", str(tmp_path), "--tag", "global_step1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["global_steps"] == 1
    assert main(["checkpoint", "verify", str(tmp_path)]) == 0
    assert "bytes, each as it was saved" in capsys.readouterr().out
    assert (
        main(["checkpoint", "export", str(tmp_path), "--out", str(tmp_path / "w.safetensors"), "--dtype", "bf16"]) == 0
    )
    assert safetensors.read(tmp_path / "w.safetensors")[0]["body.0.weight"].dtype == torch.bfloat16
    file = tmp_path / "global_step2" / "rank-00000.safetensors"
    for position in (20, file.stat().st_size - 1):  # in the header and in the values
        damaged = bytearray(file.read_bytes())
        damaged[position] ^= 1
        file.write_bytes(damaged)
        capsys.readouterr()
        assert main(["checkpoint", "verify", str(tmp_path)]) == 1
        assert "is damaged" in capsys.readouterr().err
        damaged[position] ^= 1
        file.write_bytes(damaged)
    assert main(["checkpoint", "inspect", str(tmp_path), "--tag", "other"]) == 1
    assert "has no checkpoint 'other' (it has: global_step1, global_step2)" in capsys.readouterr().err
    assert main(["checkpoint", "export", str(tmp_path), "--out", str(tmp_path / "w.bin")]) == 1
    assert "the name must end with .safetensors" in capsys.readouterr().err


def test_no_pickle_of_weights(tmp_path: Path) -> None:
    """A name of torch's format is refused, and the error says why."""
    with pytest.raises(zerobench.CheckpointError, match=r"does not end with '.safetensors', .* could run code"):
        saved.engine().save_16bit_model(tmp_path, "pytorch_model.bin")
    assert list(tmp_path.iterdir()) == []


def test_torch_reads_the_shards(tmp_path: Path) -> None:
    """torch's own reader of sharded safetensors files loads every tensor of a checkpoint, without the record."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    running = saved.save_twice(tmp_path)
    for path in (tmp_path / "global_step2").glob("*.json"):
        path.unlink()
    into = {"master.body.0.weight": torch.zeros(320)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process needs no group
        load(into, storage_reader=HuggingFaceStorageReader(str(tmp_path / "global_step2")), no_dist=True)
    expected = zerobench.safe_get_full_fp32_param(running.module.get_parameter("body.0.weight"))
    assert expected is not None
    assert into["master.body.0.weight"].tolist() == expected.flatten().tolist()
