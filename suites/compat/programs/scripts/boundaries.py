"""Accumulation at boundaries that the engine counts or the script declares, evaluation within a step, and checkpoints
at odd moments: within a step, with a number as tag, without latest, before the first step."""

import argparse
import os
from pathlib import Path

import deepspeed
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
        self.first.bias.requires_grad_(False)
        self.register_buffer("calls", torch.zeros(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.last(self.first(x).relu())


def engine_of(args: argparse.Namespace) -> deepspeed.DeepSpeedEngine:
    torch.manual_seed(0)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5, "warmup_max_lr": 1e-2}},
        "prescale_gradients": True,
        "gradient_predivide_factor": 2.0,
        "zero_optimization": {"stage": args.stage, "reduce_scatter": False, "stage3_param_persistence_threshold": 0},
    }
    engine, *_ = deepspeed.initialize(args=args, model=Net(), config=config)
    say(engine.postscale_gradients(), engine.gradient_predivide_factor())
    return engine


def say(*words: object) -> None:
    if deepspeed.comm.get_rank() == 0:
        print("seen", *words, flush=True)


def weights(engine: deepspeed.DeepSpeedEngine) -> list:
    parameters = list(engine.module.parameters())
    with deepspeed.zero.GatheredParameters(parameters):
        sums = [p.double().sum().item() for p in parameters]
    return [*sums, engine.module.calls.tolist(), engine.global_steps, engine.get_lr()]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=int(os.environ["LOCAL_RANK"]))
    parser.add_argument("--stage", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    deepspeed.init_distributed()
    engine, draw = engine_of(args), torch.Generator().manual_seed(deepspeed.comm.get_rank())

    def train(engine: deepspeed.DeepSpeedEngine, micro_steps: int) -> None:
        for _ in range(micro_steps):
            loss = engine(torch.randn(2, 8, generator=draw)).square().mean()
            before = engine.is_gradient_accumulation_boundary()
            engine.backward(loss)
            engine.step()
            say("loss", loss.item(), before, engine.was_step_applied(), engine.micro_steps, engine.global_samples)

    say("nothing", engine.load_checkpoint("nowhere"))
    try:
        engine.load_checkpoint("saves", tag="missing")
    except AssertionError:
        say("no such tag")
    train(engine, 4)
    engine.save_checkpoint("saves", client_state={"name": "first", "values": torch.arange(3.0)})
    train(engine, 3)
    say("within", weights(engine))
    engine.save_checkpoint("saves", tag=7)
    engine.save_checkpoint("saves", tag="apart", save_latest=False)
    deepspeed.comm.barrier()
    say("latest", Path("saves", "latest").read_text().strip(), sorted(p.name for p in Path("saves").glob("*[a-z7]")))
    engine.eval()
    with torch.no_grad():
        say("evaluated", engine(torch.ones(2, 8)).sum().item())
    engine.train()
    train(engine, 1)
    other = engine_of(args)
    _, state = other.load_checkpoint("saves", tag="global_step2")
    say("loaded", state["name"], state["values"].tolist(), weights(other))
    other.load_checkpoint("saves", tag="apart")
    say("loaded", weights(other), other.micro_steps)
    train(other, 2)
    say("went on", weights(other))
    for last in (False, False, True):
        other.set_gradient_accumulation_boundary(last)
        other.backward(other(torch.ones(2, 8)).square().mean())
        other.step()
        say("declared", last, other.was_step_applied())
    say("at the end", weights(other))
    say("names", list(other.module_state_dict()), list(other.module_state_dict(exclude_frozen_parameters=True)))
    for each in (engine, other):
        each.destroy()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
