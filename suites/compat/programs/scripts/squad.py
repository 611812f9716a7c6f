"""Fine-tuning, as in DeepSpeed's BingBertSquad: --deepspeed_config, groups without weight decay, rates set by hand."""

import argparse
import logging

import deepspeed
import torch
from deepspeed.utils import log_dist, logger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Block(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(hidden, 2, batch_first=True, dropout=0.1)
        self.LayerNorm = nn.LayerNorm(hidden)
        self.dense = nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended, _ = self.attention(x, x, x)
        return self.LayerNorm(x + torch.nn.functional.gelu(self.dense(attended)))


class BertForQuestions(nn.Module):
    def __init__(self, vocabulary: int = 50, hidden: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(vocabulary, hidden, padding_idx=0)
        self.encoder = nn.ModuleList(Block(hidden) for _ in range(layers))
        self.qa_outputs = nn.Linear(hidden, 2)

    def forward(
        self, ids: torch.Tensor, starts: torch.Tensor | None = None, ends: torch.Tensor | None = None
    ) -> torch.Tensor | tuple:
        x = self.embeddings(ids)
        for block in self.encoder:
            x = block(x)
        start_logits, end_logits = self.qa_outputs(x).split(1, dim=-1)
        if starts is None:
            return start_logits, end_logits
        criterion = nn.CrossEntropyLoss()
        return (criterion(start_logits.squeeze(-1), starts) + criterion(end_logits.squeeze(-1), ends)) / 2


def get_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--learning_rate", default=5e-3, type=float)
    parser.add_argument("--num_train_epochs", default=2, type=int)
    parser.add_argument("--seed", default=12345, type=int)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser = deepspeed.add_config_arguments(parser)
    return parser.parse_args()


def main() -> None:
    args = get_arguments()
    deepspeed.init_distributed(dist_backend="nccl")
    logger.setLevel(logging.WARNING)
    torch.manual_seed(args.seed)
    model = BertForQuestions()
    no_decay = ["bias", "LayerNorm.bias", "LayerNorm.weight"]
    named = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if not any(nd in n for nd in no_decay)], "weight_decay": 0.01},
        {"params": [p for n, p in named if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
    ]
    model, optimizer, _, _ = deepspeed.initialize(
        args=args, model=model, model_parameters=groups, dist_init_required=True
    )
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 50, (32, 7), generator=draw)
    data = TensorDataset(ids, torch.randint(0, 7, (32,), generator=draw), torch.randint(0, 7, (32,), generator=draw))
    loader = DataLoader(data, sampler=DistributedSampler(data), batch_size=model.train_micro_batch_size_per_gpu())
    total = len(loader) * args.num_train_epochs // model.gradient_accumulation_steps()
    global_step = 0
    for epoch in range(args.num_train_epochs):
        model.train()
        loader.sampler.set_epoch(epoch)
        for step, batch in enumerate(loader):
            ids, starts, ends = (t.to(model.device) for t in batch)
            loss = model(ids, starts, ends)
            loss = loss.mean()
            model.backward(loss)
            if model.is_gradient_accumulation_boundary():
                rate = args.learning_rate * (1 - global_step / total)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                global_step += 1
            model.step()
            optimizer.zero_grad()
            if torch.distributed.get_rank() == 0:
                print(f"epoch {epoch} step {step} loss {loss.item()!r}")
        model.eval()
        with torch.no_grad():
            start_logits, _ = model(ids)
        if torch.distributed.get_rank() == 0:
            print(f"eval {start_logits.float().sum().item()!r} norm {model.get_global_grad_norm()!r}")
    log_dist("finished", ranks=[0], level=logging.INFO)


if __name__ == "__main__":
    main()
