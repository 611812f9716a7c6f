"""Supervised fine-tuning, as in DeepSpeed-Chat: its configuration, FusedAdam or DeepSpeedCPUAdam with groups and a
schedule of the client, low-rank updates of one layer, activations recomputed, and the weights saved one by one."""

import argparse
import math
import os

import deepspeed
import torch
from deepspeed import get_accelerator
from deepspeed.compression.helper import recursive_getattr, recursive_setattr
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.runtime.utils import see_memory_usage
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


def get_train_ds_config(offload: bool, dtype: str, stage: int) -> dict:
    device = "cpu" if offload else "none"
    dtype_config = {"enabled": dtype != "fp32"}
    if dtype == "fp16":
        dtype_config["loss_scale_window"] = 100
    return {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "steps_per_print": 10,
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": True,
            "offload_param": {"device": device},
            "offload_optimizer": {"device": device},
            "stage3_param_persistence_threshold": 1e4,
            "stage3_max_live_parameters": 3e7,
            "stage3_prefetch_bucket_size": 3e7,
            "memory_efficient_linear": False,
        },
        "bf16" if dtype == "bf16" else "fp16": dtype_config,
        "gradient_clipping": 1.0,
        "prescale_gradients": False,
        "wall_clock_breakdown": False,
        "hybrid_engine": {
            "enabled": False,
            "max_out_tokens": 512,
            "inference_tp_size": 1,
            "release_inference_cache": False,
            "pin_parameters": True,
            "tp_gather_partition_size": 8,
        },
        "tensorboard": {"enabled": False, "output_path": "step1/ds_tensorboard_logs/", "job_name": "step1_tensorboard"},
    }


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.fc(self.layer_norm(x)))


class LanguageModel(nn.Module):
    def __init__(self, vocabulary: int = 32, width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=True)
        logits = self.lm_head(x[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


class LinearLayer_LoRA(nn.Module):
    def __init__(self, weight: nn.Parameter, bias: nn.Parameter, lora_dim: int = 4) -> None:
        super().__init__()
        rows, columns = weight.ds_shape if hasattr(weight, "ds_shape") else weight.shape
        self.weight, self.bias = weight, bias
        self.lora_right_weight = nn.Parameter(0.1 * torch.randn(columns, lora_dim))
        self.lora_left_weight = nn.Parameter(torch.zeros(lora_dim, rows))
        self.weight.requires_grad = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias) + x @ self.lora_right_weight @ self.lora_left_weight


def convert_linear_layer_to_lora(model: nn.Module, part_module_name: str) -> nn.Module:
    names = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and part_module_name in n]
    for name in names:
        module = recursive_getattr(model, name)
        recursive_setattr(model, name, LinearLayer_LoRA(module.weight, module.bias))
    return model


def get_optimizer_grouped_parameters(
    model: nn.Module, weight_decay: float, no_decay: tuple = ("bias", "layer_norm.weight")
) -> list:
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for n, p in named if not any(nd in n for nd in no_decay)], "weight_decay": weight_decay},
        {"params": [p for n, p in named if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
        {"params": [], "weight_decay": weight_decay, "lr": 5e-4},
    ]
    return [group for group in groups if group["params"]]


def get_all_reduce_mean(tensor: torch.Tensor) -> torch.Tensor:
    torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.SUM)
    return tensor / torch.distributed.get_world_size()


def evaluation(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    losses = 0.0
    for batch in loader:
        with torch.no_grad():
            losses = losses + model(batch.to(model.device)).float()
    losses = get_all_reduce_mean(losses / len(loader))
    model.train()
    return math.exp(losses.item())


def _z3_params_to_fetch(param_list: list) -> list:
    return [p for p in param_list if hasattr(p, "ds_id") and p.ds_status == ZeroParamStatus.NOT_AVAILABLE]


def save_zero_three_model(model_ema: nn.Module, global_rank: int, save_dir: str, zero_stage: int = 0) -> None:
    os.makedirs(save_dir, exist_ok=True)
    file = os.path.join(save_dir, "pytorch_model.bin")
    model_to_save = model_ema.module if hasattr(model_ema, "module") else model_ema
    if zero_stage != 3:
        if global_rank == 0:
            torch.save(model_to_save.state_dict(), file)
        return
    state = {}
    for k, v in model_to_save.named_parameters():
        if hasattr(v, "ds_id"):
            with deepspeed.zero.GatheredParameters(_z3_params_to_fetch([v]), enabled=True):
                v_p = v.data.cpu().clone()
        else:
            v_p = v.cpu()
        if global_rank == 0 and "lora" not in k:
            state[k] = v_p
    if global_rank == 0:
        torch.save(state, file)


def shown(name: str) -> bool:
    return name != "lm_head.weight" and "lora" not in name  # the tied weight has one name at stage 3


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--dtype", default="bf16", choices=["fp16", "bf16", "fp32"])
    parser.add_argument("--zero_stage", type=int, default=0)
    parser.add_argument("--output_dir", default="chat")
    parser = deepspeed.add_config_arguments(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    if args.local_rank == -1:
        device = torch.device(get_accelerator().device_name())
    else:
        get_accelerator().set_device(args.local_rank)
        device = torch.device(get_accelerator().device_name(), args.local_rank)
        deepspeed.init_distributed()
    args.global_rank = torch.distributed.get_rank()
    torch.manual_seed(1234)
    get_accelerator().manual_seed_all(1234)
    torch.distributed.barrier()
    model = convert_linear_layer_to_lora(LanguageModel(), "layers.1.fc")
    draw = torch.Generator().manual_seed(3)
    rows = torch.randint(0, 32, (24, 9), generator=draw)
    train = DataLoader(rows, sampler=DistributedSampler(rows), batch_size=2)
    AdamOptimizer = DeepSpeedCPUAdam if args.offload else FusedAdam
    optimizer = AdamOptimizer(get_optimizer_grouped_parameters(model, 0.1), lr=1e-3, betas=(0.9, 0.95))
    lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 3))
    model, optimizer, _, lr_scheduler = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        args=args,
        config=get_train_ds_config(args.offload, args.dtype, args.zero_stage),
        lr_scheduler=lr_scheduler,
        dist_init_required=True,
    )
    see_memory_usage("after initialize", force=True)
    if args.global_rank == 0:
        print(f"perplexity {evaluation(model, train)!r} on {device.type}")
    else:
        evaluation(model, train)
    for epoch in range(2):
        model.train()
        for batch in train:
            loss = model(batch.to(model.device))
            model.backward(loss)
            model.step()
            if args.global_rank == 0:
                print(f"loss {loss.item()!r} lr {lr_scheduler.get_last_lr()}")
        perplexity = evaluation(model, train)
        if args.global_rank == 0:
            print(f"epoch {epoch} perplexity {perplexity!r}")
        model.tput_timer.update_epoch_count()
    save_zero_three_model(model, args.global_rank, args.output_dir, args.zero_stage)
    if args.global_rank == 0:
        saved = torch.load(os.path.join(args.output_dir, "pytorch_model.bin"), weights_only=True)
        print({name: value.float().sum().item() for name, value in saved.items() if shown(name)})


if __name__ == "__main__":
    main()
