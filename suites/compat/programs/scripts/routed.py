"""Experts without tokens on some ranks, other sequence lengths on each rank, and a boundary set by hand."""

import argparse
import os

import deepspeed
import torch
from torch import Tensor, nn


class Experts(nn.Module):
    """Routes each token to one of four experts, in plain torch."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(4))
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        value, chosen = shares.max(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows = (chosen == index).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * value[rows, None])
        self.balance = (shares.mean(0) * torch.bincount(chosen, minlength=4) / len(chosen)).sum() * 4
        return out


class Tagger(nn.Module):
    """A recurrent network over padded sequences, then the experts."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 12, padding_idx=0)
        self.reads = nn.LSTM(12, 4, bidirectional=True, batch_first=True)
        self.routes, self.tags = Experts(), nn.Linear(8, 5)

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        packed = nn.utils.rnn.pack_padded_sequence(self.words(ids), lengths, batch_first=True, enforce_sorted=False)
        read, _ = nn.utils.rnn.pad_packed_sequence(self.reads(packed)[0], batch_first=True)
        tokens = read.flatten(0, 1)
        return self.tags(tokens + self.routes(tokens)), self.routes.balance


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Tagger()
    if args.stage == 3:
        deepspeed.utils.set_z3_leaf_modules(model, [Experts])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    config = {
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.25,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": args.stage, "stage3_param_persistence_threshold": 0},
    }
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=config)
    draw = torch.Generator().manual_seed(int(os.environ["RANK"]))
    for micro in range(5):
        engine.set_gradient_accumulation_boundary(micro % 2 == 1 or micro == 4)
        rows = [torch.randint(1, 40, (int(n),), generator=draw) for n in torch.randint(2, 9, (3,), generator=draw)]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        tags, balance = engine(ids, torch.tensor([len(row) for row in rows]))
        loss = nn.functional.cross_entropy(tags, ids.flatten() % 5) + 0.01 * balance
        engine.backward(loss)
        engine.step()
        print("micro-step", micro, "loss", loss.item(), "lr", schedule.get_last_lr(), "steps", engine.global_steps)


if __name__ == "__main__":
    main()
