"""Two engines that train against each other, as in DeepSpeed's GAN tutorial: two backwards and one step."""

import argparse
from pathlib import Path

import deepspeed
import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=0)
    parser.add_argument("--backend", default="nccl")
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()
    deepspeed.init_distributed(args.backend)
    torch.manual_seed(999)
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(True), nn.Linear(16, 6), nn.Tanh())
    discriminator = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2, inplace=True), nn.Linear(16, 1))
    engine_d, _, _, _ = deepspeed.initialize(
        args=args, model=discriminator, model_parameters=discriminator.parameters()
    )
    engine_g, _, _, _ = deepspeed.initialize(args=args, model=generator, model_parameters=generator.parameters())
    criterion = nn.BCEWithLogitsLoss()
    draw = torch.Generator().manual_seed(args.local_rank)
    for step in range(4):
        discriminator.zero_grad()
        real = torch.randn(4, 6, generator=draw).to(engine_d.device)
        loss_real = criterion(engine_d(real), torch.ones(4, 1))
        engine_d.backward(loss_real)
        fake = engine_g(torch.randn(4, 4, generator=draw).to(engine_g.device))
        loss_fake = criterion(engine_d(fake.detach()), torch.zeros(4, 1))
        engine_d.backward(loss_fake)
        engine_d.step()
        generator.zero_grad()
        loss_g = criterion(engine_d(fake), torch.ones(4, 1))
        engine_g.backward(loss_g)
        engine_g.step()
        if torch.distributed.get_rank() == 0:
            print(f"{step}: {loss_real.item()!r} {loss_fake.item()!r} {loss_g.item()!r}")
    Path("samples").mkdir(exist_ok=True)
    engine_g.save_checkpoint("samples/g")
    engine_d.save_checkpoint("samples/d", tag=f"epoch_{step}")


if __name__ == "__main__":
    main()
