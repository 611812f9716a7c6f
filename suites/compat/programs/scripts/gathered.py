"""A model constructed by zero.Init at stage 3, initialised and read inside GatheredParameters, as LLaVA saves it."""

import argparse
import json
from contextlib import nullcontext

import deepspeed
import torch
import torch.distributed as dist
from deepspeed import zero
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
from torch import nn


class Tower(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, width, bias=False)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(x) * self.scale


class Model(nn.Module):
    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.vision = Tower(width)
        self.norm = nn.LayerNorm(width)
        self.lora_A = nn.Parameter(torch.zeros(4, width))
        self.lora_B = nn.Parameter(torch.zeros(width, 4))
        self.head = nn.Linear(width, 3)
        self.vision.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.vision(x))
        return self.head(x + x @ self.lora_A.t() @ self.lora_B.t())


def maybe_zero_3(param: nn.Parameter) -> torch.Tensor:
    if hasattr(param, "ds_id"):
        assert param.ds_status == ZeroParamStatus.NOT_AVAILABLE
        with zero.GatheredParameters([param]):
            assert param.ds_status == ZeroParamStatus.AVAILABLE
            return param.data.detach().cpu().clone()
    return param.detach().cpu().clone()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int)
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()
    with open(args.deepspeed_config) as file:
        config = json.load(file)
    stage = config["zero_optimization"]["stage"]
    torch.manual_seed(4)
    with zero.Init(config_dict_or_path=args.deepspeed_config, enabled=stage == 3):
        model = Model()
    size = sum(p.ds_numel if hasattr(p, "ds_numel") else p.numel() for p in model.parameters())
    with zero.GatheredParameters([model.lora_A, model.head.weight], modifier_rank=0) if stage == 3 else nullcontext():
        if stage != 3 or dist.get_rank() == 0:
            nn.init.normal_(model.lora_A, generator=torch.Generator().manual_seed(1))
            nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(2))
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, _, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=trained)
    zero.register_external_parameter(engine.module, model.lora_A)
    draw = torch.Generator().manual_seed(engine.global_rank)
    for _ in range(4):
        x = torch.randn(4, 12, generator=draw).to(engine.device)
        loss = nn.functional.cross_entropy(engine(x), torch.arange(4, device=engine.device) % 3)
        engine.backward(loss)
        engine.step()
        if engine.global_rank == 0:
            print(f"loss {loss.item()!r} of {size} parameters")
    params = {name: maybe_zero_3(p) for name, p in model.named_parameters() if "lora_" in name}
    whole = engine._zero3_consolidated_16bit_state_dict() if stage == 3 else engine.module.state_dict()
    if engine.global_rank == 0:
        assert all(torch.equal(value, whole[name]) for name, value in params.items())
        print({name: value.sum().item() for name, value in params.items()})
        print({name: tuple(value.shape) for name, value in whole.items()})


if __name__ == "__main__":
    main()
