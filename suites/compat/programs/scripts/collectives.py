"""deepspeed.comm, get_accelerator and the loggers in a loop of the user's own, with a norm by hand."""

import argparse
import logging
import os

import deepspeed
import deepspeed.comm as dist
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.adam import FusedAdam
from deepspeed.runtime.lr_schedules import WarmupDecayLR
from deepspeed.utils import groups, log_dist
from deepspeed.utils.logging import logger
from deepspeed.utils.timer import SynchronizedWallClockTimer
from torch import nn


def exchange(rank: int, world: int) -> tuple:
    value = torch.tensor([rank + 1.0], device=get_accelerator().current_device_name())
    dist.all_reduce(value, op=dist.ReduceOp.SUM)
    seen = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(seen, torch.full((1,), float(rank)))
    whole = torch.empty(2 * world)
    dist.all_gather_into_tensor(whole, torch.arange(2.0) + 10 * rank)
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * world))
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    names = ["from rank 0" if rank == 0 else None]
    dist.broadcast_object_list(names, src=0)
    dist.broadcast(value, src=0, group=dist.new_group(list(range(world))))
    dist.barrier()
    return value.item(), [each.item() for each in seen], whole.tolist(), len(objects), names


def prepare() -> None:
    accelerator = get_accelerator()
    accelerator.manual_seed(7)
    accelerator.random().manual_seed(7)
    state = accelerator.get_rng_state()
    accelerator.set_rng_state(state)
    logger.warning_once("one warning")
    logger.warning_once("one warning")
    log_dist(f"{accelerator.device_name()} {accelerator.is_bf16_supported()}", ranks=[0], level=logging.INFO)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--stage", type=int, default=1)
    args = deepspeed.add_config_arguments(parser).parse_args()
    accelerator = get_accelerator()
    accelerator.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed(dist_backend=accelerator.communication_backend_name())
    rank, world = dist.get_rank(), dist.get_world_size()
    prepare()
    outcome = exchange(rank, world)
    if rank == 0:
        print(outcome, groups._get_data_parallel_world_size(), deepspeed.__version__.split("+")[0])
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = FusedAdam(net.parameters(), lr=1e-2, weight_decay=0.01)
    schedule = WarmupDecayLR(optimizer, total_num_steps=10, warmup_min_lr=1e-4, warmup_max_lr=1e-2, warmup_num_steps=3)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": args.stage},
    }
    engine, optimizer, _, schedule = deepspeed.initialize(
        args, net, optimizer, lr_scheduler=schedule, config=config, dist_init_required=False
    )
    timers = SynchronizedWallClockTimer()
    draw = torch.Generator().manual_seed(rank)
    for _ in range(4):
        timers("step").start()
        x = torch.randn(4, 8, generator=draw).to(engine.device)
        loss = engine(x).square().mean()
        engine.backward(loss)
        norms = [deepspeed.utils.safe_get_full_grad(p).norm() for p in net.parameters()]
        engine.step()
        timers("step").stop()
        average = loss.detach().clone()
        dist.all_reduce(average, op=dist.ReduceOp.AVG if accelerator.device_name() == "cuda" else dist.ReduceOp.SUM)
        if rank == 0:
            print(f"{average.item()!r} {torch.stack(norms).norm().item()!r} {schedule.get_lr()} {engine.get_lr()}")
    timers.log(["step"])
    if rank == 0:
        assert engine.global_steps == 4
    dist.log_summary()
    engine.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
