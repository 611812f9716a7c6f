"""DeepSpeed's torch_autocast in fp16, stages 1 to 3: the norm is that of scaled gradients, and the scale never falls.

The gradient of each of the four weights is 0.25 on every rank, so that its norm is 0.5. With gradient_clipping 0.25 one
step of plain SGD with lr 1 must move each weight by -0.125; with gradient_clipping 1, which clips nothing, by -0.25.

If the gradient is 1, the first scale, 65536, makes it overflow in fp16. The step is skipped, and the scale must fall,
so that of three steps two move each weight by -1.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


class Model(torch.nn.Module):
    """The loss is the sum of four weights, times a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1, bias=False)
        torch.nn.init.zeros_(self.layer.weight)

    def forward(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return factor * self.layer(x).float().sum()


def move(stage: int, dtype: str, clip: float, gradient: float, steps: int) -> tuple[float, float]:
    """How far the steps move a weight, and the norm that the engine reports in the last."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": clip,
        "torch_autocast": {"enabled": True, "dtype": dtype},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), config=config)
    for _ in range(steps):
        engine.backward(engine(torch.ones(1, 4), gradient))
        engine.step()
    with deepspeed.zero.GatheredParameters([model.layer.weight], enabled=stage == 3):
        return float(model.layer.weight[0, 0]), float(engine.get_global_grad_norm())


def on_rank(rank: int, folder: str) -> None:
    """Train at stages 1 to 3, in both dtypes; rank 0 tells."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = [
        (f"stage {stage}, {dtype}, {what}", expected, norm, *move(stage, dtype, clip, gradient, steps))
        for stage in (1, 2, 3)
        for dtype in ("bfloat16", "float16")
        for what, clip, gradient, steps, expected, norm in (
            ("clipping 1.0, one step", 1.0, 0.25, 1, -0.25, 0.5),
            ("clipping 0.25, one step", 0.25, 0.25, 1, -0.125, 0.5),
            ("gradient 1, three steps", 0.0, 1.0, 3, -3.0 if dtype == "bfloat16" else -2.0, 2.0),
        )
    ]
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """Print the moves and norms; 1 if one of them is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    for which, expected, norm, moved, reported in found:
        print(f"{which}: expected to move by {expected}, norm {norm}; got {moved:.7g}, norm {reported:.7g}")
    return int(any(abs(moved - expected) > 1e-5 or norm != reported for _, expected, norm, moved, reported in found))


if __name__ == "__main__":
    sys.exit(main())
