"""Reinforcement learning in small: an actor that trains, a reference without an optimizer, averaged weights."""

import argparse

import deepspeed
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from torch import nn


def config(stage: int, trains: bool) -> dict:
    made = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "steps_per_print": 1000,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": "auto"},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 1.0,
    }
    if trains:
        made["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return made


def policy() -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(nn.Embedding(10, 12), nn.Linear(12, 12), nn.GELU(), nn.Linear(12, 10))


def moving_average(model: nn.Module, average: nn.Module, beta: float) -> None:
    with torch.no_grad():
        for p, p_ema in zip(model.parameters(), average.parameters(), strict=True):
            to_fetch = [q for q in (p, p_ema) if hasattr(q, "ds_id")]
            with deepspeed.zero.GatheredParameters(to_fetch, enabled=bool(to_fetch)):
                p_ema.data.copy_(torch.lerp(p.data, p_ema.data, beta))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--stage", type=int, default=2)
    args = parser.parse_args()
    deepspeed.init_distributed()
    model = policy()
    actor, optimizer, _, _ = deepspeed.initialize(
        model=model,
        optimizer=DeepSpeedCPUAdam([{"params": list(model.parameters()), "weight_decay": 0.0}], lr=5e-3),
        config=config(args.stage, trains=True),
    )
    reference, nothing, _, _ = deepspeed.initialize(model=policy(), config=config(args.stage, trains=False))
    average = policy().to(actor.device)
    assert nothing is reference.optimizer  # None below stage 3, where it owns the hooks
    assert FusedAdam is not DeepSpeedCPUAdam
    reference.eval()
    draw = torch.Generator().manual_seed(torch.distributed.get_rank())
    for step in range(6):
        ids = torch.randint(0, 10, (2, 5), generator=draw).to(actor.device)
        with torch.no_grad():
            old = reference(ids).log_softmax(-1)
        new = actor(ids).log_softmax(-1)
        reward = (ids % 2 == 0).float()
        loss = -(new.gather(-1, ids.unsqueeze(-1)).squeeze(-1) * reward).mean()
        loss = loss + 0.1 * nn.functional.kl_div(new, old, log_target=True, reduction="batchmean")
        actor.backward(loss)
        actor.step()
        if actor.is_gradient_accumulation_boundary():
            moving_average(actor.module, average, 0.9)
        if torch.distributed.get_rank() == 0:
            ema = sum(p.sum().item() for p in average.parameters())
            print(f"{step} {loss.item()!r} {ema!r} {optimizer.param_groups[0]['lr']}")
    state = actor.module.state_dict()
    if args.stage < 3 and torch.distributed.get_rank() == 0:
        torch.save({"model": state, "step": actor.global_steps}, "policy.pt")


if __name__ == "__main__":
    main()
