"""DeepSpeed, stage 3: after a step and two evaluations, to gather the parameters raises with few live parameters."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist


class Block(torch.nn.Module):
    """A residual block of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 3), torch.nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Model(torch.nn.Module):
    """A model of 87 elements."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), Block(), Block(), torch.nn.Linear(4, 1))

    def forward(self) -> torch.Tensor:
        return self.layers(torch.ones(2, 4)).sum()


def end(live: int, distance: int, evaluations: int) -> str:
    """The end of a step, evaluations, and gathering: "right", or the error."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    zero = {
        "stage": 3,
        "stage3_param_persistence_threshold": 0,
        "stage3_prefetch_bucket_size": 10,
        "stage3_max_live_parameters": live,
        "stage3_max_reuse_distance": distance,
    }
    config = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True, "zero_optimization": zero}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.backward(engine())
    engine.step()
    engine.eval()
    for _ in range(evaluations):
        with torch.no_grad():
            engine()
    try:
        with deepspeed.zero.GatheredParameters(list(model.parameters())):
            return "right"
    except AssertionError as error:
        return f"AssertionError: ... {str(error).rsplit('True)', 1)[-1].strip()}"


def main() -> int:
    """1 if one of them raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as store:
        dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=0, world_size=1)
        for live, distance in ((1000, 1000), (20, 20)):
            for evaluations in (0, 1, 2):
                found = end(live, distance, evaluations)
                print(f"max_live_parameters {live}, max_reuse_distance {distance}, {evaluations} evaluations: {found}")
                wrong |= found != "right"
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
