"""A loop with Accelerate: DeepSpeedPlugin, accumulate, clipping, gathered metrics, states saved and loaded."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils import DeepSpeedPlugin, DummyOptim, DummyScheduler, set_seed
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_scheduler


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=None)
    parser.add_argument("--kind", default="client", choices=["client", "config", "bf16"])
    parser.add_argument("--local_rank", type=int, default=-1)
    return parser.parse_args()


def ds_config(stage: int) -> dict:
    warmup = dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps"), "auto")
    return {
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
        "scheduler": {"type": "WarmupDecayLR", "params": warmup},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": "auto",
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "gradient_accumulation_steps": 2,
        "gradient_clipping": "auto",
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
    }


def get_plugin(args: argparse.Namespace) -> DeepSpeedPlugin | None:
    if args.stage is None:
        return None  # accelerate launch has made one
    if args.kind == "config":
        return DeepSpeedPlugin(hf_ds_config=ds_config(args.stage))
    return DeepSpeedPlugin(
        zero_stage=args.stage, gradient_accumulation_steps=2, gradient_clipping=1.0, zero3_save_16bit_model=True
    )


def get_optimizer(model: nn.Module, kind: str) -> tuple:
    if kind == "config":
        optimizer = DummyOptim(model.parameters(), lr=1e-3, weight_decay=0.01)
        return optimizer, DummyScheduler(optimizer, total_num_steps=8, warmup_num_steps=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    return optimizer, get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=16)


def train_epoch(
    accelerator: Accelerator,
    model: nn.Module,
    batches: DataLoader,
    optimizer: AcceleratedOptimizer,
    schedule: AcceleratedScheduler,
) -> None:
    model.train()
    for batch in batches:
        with accelerator.accumulate(model):
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        mean = accelerator.gather(loss.detach().reshape(1)).mean().item()
        accelerator.print(f"loss {mean!r} lr {schedule.get_last_lr()}")


def evaluate(accelerator: Accelerator, model: nn.Module, batches: DataLoader) -> None:
    model.eval()
    losses = []
    for batch in batches:
        with torch.no_grad():
            outputs = model(input_ids=batch, labels=batch)
        losses.append(accelerator.gather_for_metrics(outputs.loss.repeat(2)))
    accelerator.print(f"eval {torch.cat(losses).float().mean().item()!r}")


def save(accelerator: Accelerator, model: nn.Module) -> None:
    accelerator.wait_for_everyone()
    unwrapped = accelerator.unwrap_model(model)
    unwrapped.save_pretrained(
        "saved",
        is_main_process=accelerator.is_main_process,
        save_function=accelerator.save,
        state_dict=accelerator.get_state_dict(model),
    )
    if accelerator.is_main_process:
        saved = load_file("saved/model.safetensors")
        print("saved", saved["transformer.wte.weight"].float().sum().item())
    assert isinstance(unwrapped, nn.Module)


def main() -> None:
    args = parse_args()
    accelerator = Accelerator(
        deepspeed_plugin=get_plugin(args),
        mixed_precision="bf16" if args.kind == "bf16" else "no",
        gradient_accumulation_steps=2,
    )
    set_seed(42)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=30, n_embd=16, n_layer=2, n_head=2, n_positions=16))
    ids = torch.randint(0, 30, (36, 8), generator=torch.Generator().manual_seed(1))
    train = DataLoader(ids[:32], batch_size=2, shuffle=True)
    evaluation = DataLoader(ids[32:], batch_size=2)
    optimizer, schedule = get_optimizer(model, args.kind)
    model, optimizer, train, evaluation, schedule = accelerator.prepare(model, optimizer, train, evaluation, schedule)
    for epoch in range(2):
        train_epoch(accelerator, model, train, optimizer, schedule)
        evaluate(accelerator, model, evaluation)
        accelerator.save_state(f"state_{epoch}")
    accelerator.load_state("state_0")
    with torch.no_grad():
        accelerator.print(f"again {model(input_ids=ids[:2].to(accelerator.device)).logits.float().sum().item()!r}")
    save(accelerator, model)
    accelerator.end_training()


if __name__ == "__main__":
    main()
