"""What a script gets from the package besides training: lines of the logger in a file, a monitor's files, calls
of hooks of the optimizer, and the functions of runtime.utils over gradients of its own."""

import argparse
import logging
from pathlib import Path

import deepspeed
import torch
from deepspeed import comm
from deepspeed.runtime.utils import CheckOverflow, clip_grad_norm_, get_flattened_grad_norm, partition_balanced
from deepspeed.utils import log_dist, logger
from torch import nn


def own_gradients(rank: int) -> list:
    parameters = [nn.Parameter(torch.ones(4)) for _ in range(2)]
    parameters[0].grad = torch.full((4,), 1.0 + rank)
    clipped = clip_grad_norm_(parameters, 1.0).item()
    parameters[1].grad = torch.tensor([1.0, 2.0, float("inf") if rank else 3.0, 4.0])
    found = CheckOverflow([parameters], zero_reduce_scatter=False)
    norms = [float("nan") if rank else 1.0]
    bounds = [int(each) for each in partition_balanced([3, 1, 1, 4, 2, 9, 1], 3)]
    return [
        clipped,
        parameters[0].grad.tolist(),
        get_flattened_grad_norm(parameters),
        found.check(),
        found.check_using_norm(norms),
        bounds,
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=0)
    parser.add_argument("--stage", type=int, default=1)
    args = parser.parse_args()
    deepspeed.init_distributed()
    rank = comm.get_rank()
    handler = logging.FileHandler(f"log-{args.stage}-{rank}.txt", mode="w")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    torch.manual_seed(0)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "steps_per_print": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9, "warmup_num_steps": 4}},
        "csv_monitor": {"enabled": True, "output_path": f"csv-{args.stage}", "job_name": "job"},
        "zero_optimization": {"stage": args.stage, "stage3_param_persistence_threshold": 0},
    }
    engine, *_ = deepspeed.initialize(model=nn.Linear(8, 4), config=config)
    hooked: list = []
    engine.basic_optimizer.register_step_pre_hook(lambda *_: hooked.append("before"))
    engine.basic_optimizer.register_step_post_hook(lambda *_: hooked.append("after"))
    for step in range(4):
        engine.backward(engine(torch.full((2, 8), 1.0 + rank)).square().mean())
        engine.step()
        engine.monitor.write_events([("Train/step", float(step), engine.global_samples)])
        log_dist(f"step {step} is over", ranks=[0])
    assert (engine.monitor.csv_monitor is not None) == (rank == 0)
    logger.removeHandler(handler)
    logger.setLevel(level)
    own = own_gradients(rank)
    everybodys = [None] * comm.get_world_size()
    comm.all_gather_object(everybodys, own)
    try:
        wrong = {"type": "WarmupLR", "params": {"warmup_number": 3}}
        deepspeed.initialize(model=nn.Linear(8, 4), config={**config, "scheduler": wrong})
    except TypeError:
        everybodys.append("a wrong parameter")
    if rank == 0:
        lines = Path(f"log-{args.stage}-0.txt").read_text().splitlines()
        for line in lines:
            if "step=" in line or "is over" in line or "micro_step=" in line:
                print("seen", line.partition(", RunningAvg")[0])
        for path in sorted(Path(f"csv-{args.stage}").rglob("*.csv")):
            print("seen", path.name, path.read_text().split())
        for each in [*everybodys, hooked]:
            print("seen", each, flush=True)
    engine.destroy()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
