"""A trainer with callbacks: the best checkpoint by evaluation, a client's cosine schedule, and a second trainer that
goes on from the best one."""

import argparse
import os

import deepspeed
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Callback:
    def on_step(self, trainer: "Trainer") -> None:
        pass

    def on_epoch(self, trainer: "Trainer") -> None:
        pass


class Prints(Callback):
    def on_step(self, trainer: "Trainer") -> None:
        engine = trainer.engine
        counts = engine.micro_steps, engine.global_steps, engine.global_samples
        trainer.say("step", *counts, engine.is_gradient_accumulation_boundary(), engine.was_step_applied())

    def on_epoch(self, trainer: "Trainer") -> None:
        engine = trainer.engine
        trainer.say("epoch", trainer.epoch, "lr", engine.get_lr(), "momentum", engine.get_mom())


class KeepsBest(Callback):
    def __init__(self) -> None:
        self.best = float("inf")

    def on_epoch(self, trainer: "Trainer") -> None:
        value = trainer.evaluate()
        if value < self.best:
            self.best = value
            state = {"epoch": trainer.epoch, "value": value, "notes": [1, ("a", None)]}
            trainer.engine.save_checkpoint(trainer.folder, tag="best", client_state=state)
            trainer.say("best", value)


class Trainer:
    def __init__(self, args: argparse.Namespace, folder: str) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        draw = torch.Generator().manual_seed(1)
        data = TensorDataset(torch.randn(32, 8, generator=draw), torch.randn(32, 4, generator=draw))
        self.folder, self.data, self.epoch = folder, data, 0
        groups = [
            {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
            {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        ]
        optimizer = torch.optim.AdamW(groups, lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
        config = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 0.5,
            "zero_optimization": {"stage": args.stage, "stage3_param_persistence_threshold": 0},
        }
        self.engine, _, _, self.schedule = deepspeed.initialize(
            args=args, model=model, optimizer=optimizer, lr_scheduler=schedule, config=config
        )
        self.callbacks = [Prints(), KeepsBest()]
        self.say("schedule", self.schedule is schedule, self.engine.train_batch_size())

    def say(self, *words: object) -> None:
        if self.engine.global_rank == 0:
            print("seen", *words, flush=True)

    def evaluate(self) -> float:
        self.engine.eval()
        with torch.no_grad():
            losses = [nn.functional.mse_loss(self.engine(x), y).item() for x, y in DataLoader(self.data, batch_size=8)]
        self.engine.train()
        return sum(losses)

    def fit(self, epochs: int) -> None:
        sampler = DistributedSampler(self.data, shuffle=True, seed=3)
        for self.epoch in range(epochs):
            sampler.set_epoch(self.epoch)
            for x, y in DataLoader(self.data, batch_size=2, sampler=sampler):
                loss = nn.functional.mse_loss(self.engine(x), y)
                scaled = self.engine.backward(loss)
                self.engine.step()
                self.say("loss", loss.item(), scaled.item())
                for each in self.callbacks:
                    each.on_step(self)
            for each in self.callbacks:
                each.on_epoch(self)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=int(os.environ["LOCAL_RANK"]))
    parser.add_argument("--stage", type=int, default=1)
    args = deepspeed.add_config_arguments(parser).parse_args()
    deepspeed.init_distributed()
    first = Trainer(args, "best")
    first.fit(2)
    second = Trainer(args, "best")
    path, state = second.engine.load_checkpoint("best")
    kept = {name: state[name] for name in ("epoch", "value", "notes")}
    second.say("loaded", path is not None, kept, second.engine.global_steps, second.schedule.last_epoch)
    second.fit(1)
    second.say("end", second.evaluate())
    for each in (first, second):
        each.engine.destroy()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
