"""Pretraining of a vision transformer, as in BEiT: rates that fall layer by layer and follow a schedule of the script,
which reads loss scale and norm from the optimizer; a configuration with a key that DeepSpeed ignores; and a return to
an older checkpoint by hand."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import nn

STEPS, MICRO_STEPS = 5, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.gamma = nn.Parameter(0.1 * torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gamma * self.mlp(self.norm(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


def groups(model: Model) -> list[dict]:
    found: dict[tuple[int, bool], dict] = {}
    for name, parameter in model.named_parameters():
        layer = 4 if name.startswith("head") else int(name.split(".")[1]) + 1 if name.startswith("blocks") else 0
        decays = parameter.dim() > 1 and name != "token"
        new = {"params": [], "weight_decay": 0.05 if decays else 0.0, "lr_scale": 0.75 ** (4 - layer)}
        found.setdefault((layer, decays), new)["params"].append(parameter)
    return list(found.values())


def scale_and_norm(optimizer: torch.optim.Optimizer) -> tuple[float, float]:
    scale = optimizer.loss_scale if hasattr(optimizer, "loss_scale") else optimizer.cur_scale
    return float(scale), float(optimizer._global_grad_norm)


def batch(micro_step: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(10 * micro_step + deepspeed.comm.get_rank())
    return torch.randn(4, 3, 8, 8, generator=draw), torch.randint(0, 10, (4,), generator=draw)


def configuration(stage: int, world: int) -> dict[str, Any]:
    params = {"lr": 1e-3, "weight_decay": 0.05, "betas": [0.9, 0.98], "eps": 1e-6, "torch_adam": True}
    return {
        "train_batch_size": 4 * MICRO_STEPS * world,
        "train_micro_batch_size_per_gpu": 4,
        "steps_per_print": 1000,
        "optimizer": {"type": "Adam", "adam_w_mode": True, "params": params},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--local_rank", type=int, default=-1)
    args = parser.parse_args()
    deepspeed.init_distributed()
    rank, world = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
    args.deepspeed_config = f"config_of_rank{rank}.json"
    Path(args.deepspeed_config).write_text(json.dumps(configuration(args.stage, world)), encoding="utf-8")
    torch.manual_seed(0)
    model = Model()
    engine, optimizer, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=groups(model))

    def say(*values: object) -> None:
        if rank == 0:
            print("seen", *values, flush=True)

    def train(begin: int, end: int) -> None:
        for step in range(begin, end):
            rate = 1e-2 * (0.5 + 0.5 * math.cos(math.pi * step / STEPS))
            for group in optimizer.param_groups:
                group["lr"] = rate * group["lr_scale"]
                if group["weight_decay"] > 0:
                    group["weight_decay"] = 0.05 + 0.01 * step
            for micro_step in range(MICRO_STEPS):
                x, y = batch(step * MICRO_STEPS + micro_step)
                loss = nn.functional.cross_entropy(engine(x), y, label_smoothing=0.1)
                engine.backward(loss)
                engine.step()
                say("loss", step, loss.item())
            say(
                "scale and norm", *scale_and_norm(optimizer), "rates", sorted({g["lr"] for g in optimizer.param_groups})
            )

    train(0, 2)
    engine.save_checkpoint("saves", tag="checkpoint-1", client_state={"step": 2})
    train(2, 3)
    engine.save_checkpoint("saves", tag="checkpoint-2", client_state={"step": 3})
    deepspeed.comm.barrier()
    if rank == 0:
        Path("saves", "latest").write_text("checkpoint-1", encoding="utf-8")
    deepspeed.comm.barrier()
    _, state = engine.load_checkpoint("saves")
    say("back at", state["step"])
    train(state["step"], STEPS)


if __name__ == "__main__":
    main()
