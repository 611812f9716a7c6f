"""DeepSpeed: the order of MoE groups of the optimizer hangs on the hash seed, so that a load swaps experts' masters.

Two MoE layers of a model have unlike ep_size. One run saves a checkpoint; another one, with another hash seed, loads it
and takes a step with a learning rate of zero.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class Model(torch.nn.Module):
    """Two MoE layers: each rank has one expert of each."""

    def __init__(self) -> None:
        super().__init__()
        from deepspeed.moe.layer import MoE

        torch.manual_seed(0)
        self.first = MoE(4, torch.nn.Linear(4, 4), num_experts=1, ep_size=1, drop_tokens=False, min_capacity=0)
        self.second = MoE(4, torch.nn.Linear(4, 4), num_experts=2, ep_size=2, drop_tokens=False, min_capacity=0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.second(self.first(x)[0])[0]
        return output.square().mean()


def build() -> Any:
    """An engine of stage 0 in bf16, with the groups that the tutorial makes."""
    import deepspeed
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

    model = Model()
    groups = split_params_into_different_moe_groups_for_optimizer({"params": list(model.parameters()), "name": "all"})
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": True},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(groups, lr=0.0), config=config)
    return engine


def run(rank: int, folder: str, name: str) -> None:
    """Save the checkpoint, or load it, take a step, and exit with 1 if that has moved a weight."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/{name}", rank=rank, world_size=2)
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    engine = build()
    groups = [group["name"] for group in engine.optimizer.optimizer.param_groups]
    moved = dict[str, float]()
    if name == "saves":
        engine.save_checkpoint(f"{folder}/saved")
    else:
        engine.load_checkpoint(f"{folder}/saved")
        before = {name: p.detach().clone() for name, p in engine.module.named_parameters()}
        engine.backward(engine(torch.randn(4, 4, dtype=torch.bfloat16)))
        engine.step()
        by = {name: float((p - before[name]).abs().max()) for name, p in engine.module.named_parameters()}
        moved = {name.replace("deepspeed_moe.experts.deepspeed_", ""): round(d, 3) for name, d in by.items() if d}
    if rank == 0:
        print(f"the run that {name} has the groups {groups}")
        if name == "loads":
            print(f"expected no weight that moves in a step with a rate of 0, got {moved or 'none'}")
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.exit(int(bool(moved)))


def launch(folder: str, name: str, seed: str) -> int:
    """The exit code of a run with two ranks."""
    os.environ["PYTHONHASHSEED"] = seed  # otherwise it is another one in each process
    ranks = [mp.get_context("spawn").Process(target=run, args=(rank, folder, name)) for rank in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    return max(abs(each.exitcode or 0) for each in ranks)


def main() -> int:
    """1 if a weight moves."""
    with tempfile.TemporaryDirectory() as folder:
        return launch(folder, "saves", "0") or launch(folder, "loads", "2")


if __name__ == "__main__":
    sys.exit(main())
