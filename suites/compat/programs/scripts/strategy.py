"""A trainer's strategy class around DeepSpeed: the model built in zero.Init, checkpoints with its state."""

import argparse
import contextlib
import logging

import deepspeed
import torch
from deepspeed.utils import logger
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from torch import nn


class Task(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.ReLU())
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4 * 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.encoder(x)).flatten(1))

    def training_step(self, batch: tuple) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)


class Wrapper(nn.Module):
    """The forward of the engine is the task's training_step."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task

    def forward(self, batch: tuple) -> torch.Tensor:
        return self.task.training_step(batch) if self.training else self.task(batch[0])


class DeepSpeedStrategy:
    def __init__(self, stage: int) -> None:
        self.stage = stage
        self.config = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 0.5,
            "zero_optimization": {
                "stage": stage,
                "contiguous_gradients": True,
                "overlap_comm": True,
                "allgather_partitions": True,
                "reduce_scatter": True,
                "allgather_bucket_size": 200_000_000,
                "reduce_bucket_size": 200_000_000,
                "sub_group_size": 1_000_000_000_000,
            },
            "activation_checkpointing": {
                "partition_activations": False,
                "cpu_checkpointing": False,
                "contiguous_memory_optimization": False,
                "synchronize_checkpoint_boundary": False,
            },
            "aio": {"block_size": 1048576, "queue_depth": 8, "single_submit": False, "overlap_events": True},
        }

    def model_context(self) -> contextlib.AbstractContextManager:
        if self.stage < 3:
            return contextlib.nullcontext()
        return deepspeed.zero.Init(
            remote_device="cpu", pin_memory=True, config_dict_or_path=self.config, dtype=torch.float32
        )

    def setup(self, task: Task) -> tuple:
        parameters = filter(lambda p: p.requires_grad, task.parameters())
        optimizer = torch.optim.NAdam(parameters, lr=5e-3)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=10, cycle_momentum=False)
        engine, optimizer, _, _ = deepspeed.initialize(
            args=argparse.Namespace(device_rank=0),
            config=self.config,
            model=Wrapper(task),
            model_parameters=filter(lambda p: p.requires_grad, task.parameters()),
            optimizer=optimizer,
            lr_scheduler=scheduler,
            dist_init_required=False,
        )
        deepspeed.checkpointing.configure(mpu_=None, partition_activations=False, checkpoint_in_cpu=False)
        return engine, scheduler


def fit(engine: deepspeed.DeepSpeedEngine, steps: range, rank: int) -> None:
    for step in steps:
        draw = torch.Generator().manual_seed(step * 2 + rank)
        batch = torch.randn(2, 2, 8, generator=draw), torch.randint(0, 3, (2,), generator=draw)
        loss = engine(batch)
        engine.backward(loss)
        engine.step()
        if rank == 0:
            print(f"step {step} loss {loss.item()!r} lr {engine.get_lr()}")


def build(stage: int) -> deepspeed.DeepSpeedEngine:
    strategy = DeepSpeedStrategy(stage)
    torch.manual_seed(1)
    with strategy.model_context():
        task = Task()
    return strategy.setup(task)[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--stage", type=int, default=2)
    args = parser.parse_args()
    logger.setLevel(logging.WARNING)
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    rank = torch.distributed.get_rank()
    engine = build(args.stage)
    fit(engine, range(6), rank)
    engine.save_checkpoint("lightning", client_state={"epoch": 0, "loops": {"seen": 6}}, tag="checkpoint")
    fit(engine, range(6, 8), rank)
    again = build(args.stage)
    _, client_state = again.load_checkpoint("lightning", load_optimizer_states=True, load_lr_scheduler_states=True)
    assert client_state["loops"] == {"seen": 6}
    fit(again, range(6, 8), rank)
    if rank == 0:
        state = get_fp32_state_dict_from_zero_checkpoint("lightning")
        print({name: value.sum().item() for name, value in state.items() if name.endswith("weight")})
    again.eval()
    with torch.no_grad():
        outputs = again((torch.ones(1, 2, 8), None))
    if rank == 0:
        print(f"outputs {outputs.sum().item()!r}")


if __name__ == "__main__":
    main()
