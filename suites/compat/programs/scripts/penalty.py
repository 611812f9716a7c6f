"""A Wasserstein GAN with a gradient penalty: two engines, a derivative of the critic's derivative, two critic steps."""

import argparse
import os

import deepspeed
import torch
from torch import nn


def built(model: nn.Module, lr: float, stage: int) -> deepspeed.DeepSpeedEngine:
    params = {"lr": lr, "betas": [0.0, 0.9], "adam_w_mode": False}
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "Adam", "params": params},
        "gradient_clipping": 0.0,
        "prescale_gradients": True,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    return engine


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int)
    args = parser.parse_args()
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 6))
    critic = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    makes, judges = built(generator, 1e-3, args.stage), built(critic, 2e-3, args.stage)
    draw = torch.Generator().manual_seed(int(os.environ["RANK"]))
    for iteration in range(4):
        real = torch.randn(8, 6, generator=draw) + 1
        fake = makes(torch.randn(8, 4, generator=draw)).detach()
        share = torch.rand(8, 1, generator=draw)
        between = (share * real + (1 - share) * fake).requires_grad_(True)
        of_real, of_fake, of_between = judges(torch.cat([real, fake, between])).split(8)
        (slope,) = torch.autograd.grad(of_between.sum(), between, create_graph=True)
        penalty = ((slope.norm(2, dim=1) - 1) ** 2).mean()
        loss = of_fake.mean() - of_real.mean() + 10 * penalty
        judges.backward(loss)
        judges.step()
        print("critic loss", loss.item(), "penalty", penalty.item())
        if iteration % 2:
            loss = -judges(makes(torch.randn(8, 4, generator=draw))).mean()
            makes.backward(loss)
            makes.step()
            critic.zero_grad()
            print("generator loss", loss.item())


if __name__ == "__main__":
    main()
