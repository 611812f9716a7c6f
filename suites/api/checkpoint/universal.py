"""DeepSpeed's conversion to a universal checkpoint, from its source: ``deepspeed/checkpoint/ds_to_universal.py``."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from zerobench.engine.checkpoint.deepspeed import pickles

#: The content of files by their path in the folder of the checkpoint.
Files = dict[str, Any]


def convert(folder: Path, into: Path) -> None:
    """Write the universal form of a checkpoint of stages 1 to 3, and make it the latest universal one."""
    models = sorted(folder.glob("*_model_states.pt"))
    ranks = sorted(folder.glob("*_optim_states.pt"))
    model = pickles.read(models[0])
    states = [pickles.read(path)["optimizer_state_dict"] for path in ranks]
    of_stage = _of_stage_3 if "fp32_flat_groups" in states[0] else _of_stages_1_and_2
    for name, content in of_stage(model, states).items():
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        with (into / name).open("xb") as file:
            pickles.write(file, content)
    for path in models:
        shutil.copy(path, into)
    (into.parent / "latest_universal").write_text(into.name, encoding="utf-8")


def _of_stages_1_and_2(model: dict[str, Any], ranks: list[dict[str, Any]]) -> Files:
    found: Files = {}
    for group, shapes in enumerate(model["param_shapes"]):
        for name, shape in shapes.items():
            flat = [_cut(rank, group, name) for rank in ranks]
            parts = [each for each in flat if each is not None]
            for kind in ("fp32", "exp_avg", "exp_avg_sq"):
                whole = torch.cat([part[kind] for part in parts]).reshape(shape)
                found[f"zero/{name}/{kind}.pt"] = {"cat_dim": 0, "param": whole}
            found[f"zero/{name}/step.pt"] = parts[0]["step"]
    for name, value in model["module"].items():
        found.setdefault(f"zero/{name}/fp32.pt", {"param": value.float()})
    sharded = ("base_optimizer_state", "param_slice_mappings", "single_partition_of_fp32_groups")
    common = {key: value for key, value in ranks[0].items() if key not in sharded}
    common["param_groups"] = ranks[0]["base_optimizer_state"]["param_groups"]
    return {**found, "zero/optimizer_state.pt": common}


def _cut(rank: dict[str, Any], group: int, name: str) -> dict[str, Any] | None:
    """A rank's part of a parameter's states; None if it has none."""
    at = rank["param_slice_mappings"][group].get(name)
    if at is None:
        return None
    state = rank["base_optimizer_state"]["state"][group]
    flat = {"fp32": rank["single_partition_of_fp32_groups"][group], **state}
    return {
        kind: value if kind == "step" else value[at.start : at.start + at.numel].clone() for kind, value in flat.items()
    }


def _of_stage_3(model: dict[str, Any], ranks: list[dict[str, Any]]) -> Files:
    found: Files = {}
    for index, shapes in enumerate(model["param_shapes"]):
        flat = [
            {"fp32": rank["fp32_flat_groups"][index], **rank["optimizer_state_dict"]["state"][index]} for rank in ranks
        ]
        offset = 0
        for name, shape in shapes.items():
            elements = torch.Size(shape).numel()
            part = -(-elements // len(ranks))
            for kind in ("fp32", "exp_avg", "exp_avg_sq"):
                whole = torch.cat([each[kind][offset : offset + part] for each in flat])[:elements]
                found[f"zero/{name}/{kind}.pt"] = whole.clone()
            offset += part
    common = {**ranks[0], "param_groups": ranks[0]["optimizer_state_dict"]["param_groups"]}
    return {**found, "zero/optimizer_state.pt": common}
