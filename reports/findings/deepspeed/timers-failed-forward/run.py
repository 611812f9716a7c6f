"""DeepSpeed: with wall_clock_breakdown, the forward after one that raised raises, because a timer runs."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist


class Model(torch.nn.Module):
    """The loss is the sum of the weight; the forward may raise in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self, *, fails: bool) -> torch.Tensor:
        if fails:
            raise ValueError
        return self.weight.sum()


def end(stage: int, timers: bool) -> str:
    """The end of a step after a forward that raised, whose batch the client leaves out: "right", or the error."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "Adam", "params": {"torch_adam": True, "lr": 0.1}},
        "zero_optimization": {"stage": stage},
        "wall_clock_breakdown": timers,
    }
    engine, *_ = deepspeed.initialize(model=Model(), config=config)
    with contextlib.suppress(ValueError):
        engine(fails=True)
    try:
        engine.backward(engine(fails=False))
        engine.step()
    except AssertionError as error:
        return f"AssertionError: {error}"
    return "right"


def main() -> int:
    """1 if a step fails."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as store:
        dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=0, world_size=1)
        for stage in (0, 2, 3):
            for timers in (False, True):
                found = end(stage, timers)
                print(f"stage {stage}, wall_clock_breakdown={timers}: {found}")
                wrong |= found != "right"
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
