"""A loop that calls loss.backward() itself: two losses, a frozen backbone, RMSprop, a plateau schedule."""

import argparse

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import nn


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 16), nn.GELU())
        self.head = nn.Linear(16, 4)
        self.decoder = nn.Linear(16, 6)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> dict:
        self.seen += 1
        hidden = self.backbone(x)
        return {"logits": self.head(hidden), "again": self.decoder(hidden)}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--autocast", action="store_true")
    return parser.parse_args()


def ds_config(args: argparse.Namespace) -> dict:
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "fp16": {"enabled": args.dtype == "fp16", "initial_scale_power": 6},
        "torch_autocast": {"enabled": args.autocast, "dtype": "bfloat16"},
        "zero_optimization": {"stage": args.stage, "stage3_param_persistence_threshold": 0},
        "_comment": "the client's optimizer",
    }


def main() -> None:
    args = parse_args()
    deepspeed.init_distributed()
    rank = deepspeed.comm.get_rank()
    deepspeed.runtime.utils.set_random_seed(3)
    model = Tower()
    model.backbone.requires_grad_(False)
    trained = [
        {"params": list(model.head.parameters()), "name": "head"},
        {"params": list(model.decoder.parameters()), "lr": 1e-3, "name": "decoder"},
    ]
    optimizer = torch.optim.RMSprop(trained, lr=1e-2, momentum=0.9)
    engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=ds_config(args))
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    draw = torch.Generator().manual_seed(rank)
    dtype = torch.half if args.dtype == "fp16" else torch.float32
    for step in range(8):
        x = torch.randn(4, 6, generator=draw).to(get_accelerator().current_device_name(), dtype)
        outputs = engine(x)
        classes = nn.functional.cross_entropy(outputs["logits"].float(), torch.arange(4, device=x.device))
        distance = (outputs["again"].float() - x.float()).square().mean()
        loss = classes + 0.1 * distance
        engine.scale(loss).backward()
        engine.step()
        if engine.was_step_applied():
            plateau.step(step)
        if rank == 0:
            print(f"loss {loss.item()!r} lr {[(g['name'], g['lr']) for g in optimizer.param_groups]}")
    assert engine._config.zero_config.stage == args.stage
    norm = engine.get_global_grad_norm()
    if rank == 0:
        print(f"steps {engine.global_steps} norm {norm!r} seen {int(engine.module.seen)}")


if __name__ == "__main__":
    main()
