"""Peculiar calls: the loss among several outputs, a config in base64, a odd keys, evaluation first."""

import base64
import json
import sys

import deepspeed
import torch
from torch import nn

CONFIG = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.0}},
    "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 3e-3}},
    "zero_optimization": {
        "stage": 0,
        "reduce_bucket_size": 5e8,
        "allgather_bucket_size": 5e8,
        "round_robin_gradients": True,
        "sub_group_size": 1e9,
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "ignore_unused_parameters": False,
    },
    "communication_data_type": "fp32",
    "data_types": {"grad_accum_dtype": "fp32"},
    "checkpoint": {"tag_validation": "Warn"},
    "aio": {"block_size": 1048576, "queue_depth": 8, "thread_count": 1},
    "comms_logger": {"enabled": False},
    "flops_profiler": {"enabled": False, "profile_step": 1},
    "activation_checkpointing": {"partition_activations": False},
    "wall_clock_breakdown": False,
    "my_own_notes": "ignored",
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6)
        self.unused = nn.Linear(2, 2)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        self.steps += 1
        hidden = self.b(torch.relu(self.a(x)) * scale)
        return {"loss": hidden.square().mean(), "hidden": hidden, "none": None}


def main() -> None:
    stage = int(sys.argv[sys.argv.index("--stage") + 1])
    config = {**CONFIG, "zero_optimization": {**CONFIG["zero_optimization"], "stage": stage}}
    torch.manual_seed(2)
    net = Net()
    text = base64.urlsafe_b64encode(json.dumps(config).encode()).decode()
    engine, _, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=text)
    rank = engine.global_rank
    draw = torch.Generator().manual_seed(rank)
    engine.eval()
    with torch.inference_mode():
        first = engine(torch.ones(1, 6, device=engine.device))["loss"].item()
    engine.train()
    for step in range(6):
        x = torch.randn(2, 6, generator=draw).to(engine.device)
        outputs = engine(x, scale=0.5)
        engine.backward(outputs["loss"], retain_graph=False)
        engine.step()
        if rank == 0:
            print(f"{step}: {outputs['loss'].item()!r} {engine.get_lr()} {engine.get_mom()} {engine.steps.item()}")
    if rank == 0:
        print(f"first {first!r}", engine.get_batch_info(), engine.a.weight.shape)
        assert engine.zero_optimization_stage() == stage
        print(engine.train_batch_size(), engine.loss_scale(), engine.fp16_enabled(), engine.dynamic_loss_scale())
    saved = engine.save_checkpoint("odd", client_state={"epoch": 1}, save_latest=False)
    assert saved
    path, state = engine.load_checkpoint("odd", tag=f"global_step{engine.global_steps}", load_optimizer_states=False)
    assert path is not None
    assert state["epoch"] == 1
    assert engine.load_checkpoint("nothing_there") == (None, None)
    assert engine.data_parallel_group is not None
    assert engine.mpu is None
    assert engine.get_data_parallel_rank() == rank
    assert (engine.seq_dp_world_size, engine.get_model_parallel_rank(), engine.num_experts) == (2, 0, [])
    engine.train_batch_size()


if __name__ == "__main__":
    main()
