"""DeepSpeed that resumes from universal checkpoints, which its own script makes of those that it saves."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from zerobench.scenario import Scenario
from zerobench.subjects import deepspeed_saving
from zerobench.subjects.deepspeed import DeepSpeed

_PAGE = "https://www.deepspeed.ai/tutorials/universal-checkpointing/"
_SOURCE = "https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/checkpoint/ds_to_universal.py"


class DeepSpeedUniversal(DeepSpeed):
    """After each save rank 0 converts the files; a load takes the converted ones, on any number of ranks."""

    name = "deepspeed-universal"
    resumes_at_any_world = True
    keeps_tags = False  # a converted state has a tag of its own
    loads_parts = False  # DeepSpeed loads a converted checkpoint as a whole
    savings = deepspeed_saving.IN_ONE_FOLDER

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if scenario.resumes and not scenario.placement.optimizer:
            return f"DeepSpeed converts the checkpoints of stages 1 to 3: {_PAGE}"
        if scenario.resumes and scenario.optimizer.name not in ("adam", "adamw"):
            return f"DeepSpeed converts exp_avg and exp_avg_sq, Adam's states, and no others: {_SOURCE}"
        return super().unsupported(scenario)

    def _config(self) -> dict[str, Any]:
        return {**super()._config(), "checkpoint": {"load_universal": True}}

    def save(self, directory: Path) -> None:
        super().save(directory)
        if dist.get_rank() == 0:
            convert_to_universal(directory, self._last_tag(directory))
        dist.barrier()

    def _last_tag(self, directory: Path) -> str:
        if self.scenario.saving == deepspeed_saving.TAGGED:
            return deepspeed_saving.last_tag(directory)
        return (directory / "latest").read_text(encoding="utf-8")


def convert_to_universal(directory: Path, tag: str) -> None:
    """Make a universal checkpoint of this one, as ``ds_to_universal.py`` does; in one process."""
    from deepspeed.checkpoint import ds_to_universal

    options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False, "strict": True}
    paths = {"input_folder": str(directory / tag), "output_folder": str(directory / f"{tag}_universal")}
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        ds_to_universal.main(SimpleNamespace(**paths, **options, inject_missing_state=True))
