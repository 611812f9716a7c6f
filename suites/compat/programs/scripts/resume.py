"""Stops in the middle of an epoch and starts again: training_data with collate_fn, and client_state."""

import argparse
import os

import deepspeed
import torch
from deepspeed.utils import RepeatingLoader, logger
from torch import nn


class Sentences(torch.utils.data.Dataset):
    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(9)
        self.rows = [torch.randn(length, 4, generator=draw) for length in [3, 5, 2, 4] * 8]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        return {"x": self.rows[index], "y": self.rows[index].sum()}


def collate(samples: list) -> dict:
    x = nn.utils.rnn.pad_sequence([sample["x"] for sample in samples], batch_first=True)
    return {"x": x, "y": torch.stack([sample["y"] for sample in samples])}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 8, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        states, _ = self.rnn(x)
        return nn.functional.mse_loss(self.out(self.drop(states[:, -1])).squeeze(-1), y)


def train(args: argparse.Namespace, steps: int, resume: bool) -> deepspeed.DeepSpeedEngine:
    torch.manual_seed(0)
    net = Net()
    engine, optimizer, loader, scheduler = deepspeed.initialize(
        args=args,
        model=net,
        model_parameters=net.parameters(),
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-2, weight_decay=0.1),
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20),
        training_data=Sentences(),
        collate_fn=collate,
    )
    begun = 0
    if resume:
        path, client_state = engine.load_checkpoint("checkpoints")
        assert path is not None
        begun = client_state["micro_step"]
        assert client_state["note"] == ["a", {"b": 1}]
    data = RepeatingLoader(loader)
    for _ in range(begun):
        next(data)
    for step in range(begun, steps):
        torch.manual_seed(step * 2 + engine.global_rank)  # dropout
        loss = engine(**next(data))
        engine.backward(loss)
        engine.step()
        if engine.global_rank == 0 and step >= 6:
            print(f"step {step}: {loss.item()!r} {scheduler.get_last_lr()} {optimizer.param_groups[0]['lr']!r}")
        if step == 5 and not resume:
            state = {"micro_step": step + 1, "note": ["a", {"b": 1}]}
            engine.save_checkpoint("checkpoints", tag="halfway", client_state=state)
    return engine


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", "0")))
    args = deepspeed.add_config_arguments(parser).parse_args()
    deepspeed.init_distributed(verbose=False)
    logger.info("the first half, and on")
    whole = train(args, 12, resume=False)
    if whole.global_rank == 0:
        print("again")
    again = train(args, 12, resume=True)
    assert again.global_steps == whole.global_steps == 6
    with deepspeed.zero.GatheredParameters(list(whole.module.parameters()) + list(again.module.parameters())):
        for first, second in zip(whole.module.parameters(), again.module.parameters()):  # noqa: B905
            assert torch.equal(first, second)


if __name__ == "__main__":
    main()
