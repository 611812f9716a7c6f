"""DeepSpeed, stage 3: the step raises if torch.chunk makes fewer tiles than TiledMLP was told."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

SHARDS = 4


class Model(torch.nn.Module):
    """A layer, and one whose tokens are computed in tiles."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layer = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledMLP

        given = [self.layer.weight]
        output: torch.Tensor = TiledMLP.apply(lambda model, x: model.layer(x), self, self.stem(x), SHARDS, given)
        return output.sum()


def outcome(stage: int, tokens: int) -> str:
    """That of a step."""
    import deepspeed

    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.backward(engine(torch.randn(1, tokens, 4)))
    try:
        engine.step()
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return "a step"


def main() -> int:
    """1 if a step raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    raised = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        for stage in (2, 3):
            for tokens in (8, 9):
                chunks = len(torch.zeros(tokens).chunk(SHARDS))
                got = outcome(stage, tokens)
                raised = raised or got != "a step"
                print(f"stage {stage}, {tokens} tokens in {SHARDS} shards, of which torch makes {chunks}: {got}")
        dist.destroy_process_group()
    return int(raised)


if __name__ == "__main__":
    sys.exit(main())
