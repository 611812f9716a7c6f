"""DeepSpeed stage 3: zero.Init(module=model) leaves the parameters in fp32 if the engine is in 16 bits."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist


def dtype_of(constructed: bool) -> str:
    """The dtype of a weight that a forward uses, of a model that zero.Init constructs or converts."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3},
    }
    if constructed:
        with deepspeed.zero.Init(config_dict_or_path=config):
            model = torch.nn.Linear(4, 4)
    else:
        model = torch.nn.Linear(4, 4)
        deepspeed.zero.Init(module=model, config_dict_or_path=config)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    found: list[str] = []
    engine.module.register_forward_pre_hook(lambda module, _: found.append(str(module.weight.dtype)))
    try:
        engine(torch.ones(1, 4, dtype=torch.bfloat16))
    except RuntimeError as error:
        return f"{found[0]}, RuntimeError: {str(error).partition(',')[0]}"
    return found[0]


def main() -> int:
    """1 if a weight is not in bf16."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        found = {constructed: dtype_of(constructed) for constructed in (True, False)}
        dist.destroy_process_group()
    for constructed, value in found.items():
        which = "with zero.Init()" if constructed else "zero.Init(module=model)"
        print(f"{which}: expected torch.bfloat16, got {value}")
    return int(any(value != "torch.bfloat16" for value in found.values()))


if __name__ == "__main__":
    sys.exit(main())
