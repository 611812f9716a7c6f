"""Learning rate finder: tuning arguments, a range test, back to the first weights, and then a short training."""

import argparse

import deepspeed
import torch
from deepspeed.ops.op_builder import CPUAdamBuilder
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.constants import ROUTE_TRAIN
from deepspeed.runtime.lr_schedules import add_tuning_arguments, get_config_from_args, get_lr_from_config
from deepspeed.utils.logging import LoggerFactory
from torch import nn


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=0)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser = add_tuning_arguments(parser)
    return parser.parse_args()


def train(engine: deepspeed.DeepSpeedEngine, draw: torch.Generator, steps: int) -> None:
    for step in range(steps):
        x = torch.randn(2, 6, generator=draw).to(engine.device)
        loss = (engine(x) - x.sum(1, keepdim=True)).square().mean()
        engine.backward(loss)
        engine.step()
        if engine.global_rank == 0:
            print(f"{step}: loss {loss.item()!r} lr {engine.get_lr()}")


def main() -> None:
    args = parse()
    schedule, error = get_config_from_args(args)
    assert error is None, error
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": get_lr_from_config(schedule)[0]}},
        "scheduler": schedule,
        "zero_optimization": {"stage": args.stage, "stage3_param_persistence_threshold": 0},
    }
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 1))
    engine, optimizer, _, _ = deepspeed.initialize(args=args, model=net, config=config)
    LoggerFactory.create_logger(name="finder").info("is_compatible: %s", CPUAdamBuilder().is_compatible())
    draw = torch.Generator().manual_seed(engine.global_rank)
    engine.save_checkpoint("first", tag="weights", client_state={"route": ROUTE_TRAIN})
    train(engine, draw, 6)
    _, state = engine.load_checkpoint("first", tag="weights")
    for group in optimizer.param_groups:
        group["lr"] = 1e-3
    train(engine, draw, 3)
    if engine.global_rank == 0:
        print(state, isinstance(optimizer, BF16_Optimizer), engine.load_checkpoint("nothing"))
    else:
        engine.load_checkpoint("nothing")


if __name__ == "__main__":
    main()
