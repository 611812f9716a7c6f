"""DeepSpeed stage 3: after torch.autograd.grad by the input of a model, the next backward gives wrong gradients."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist


def loss(module: torch.nn.Module, adversarial: bool) -> torch.Tensor:
    """That of an input, or of one that was moved along the signs of its gradient, as in adversarial training."""
    x = torch.linspace(-1.0, 1.0, 8).reshape(2, 4).requires_grad_()
    if adversarial:
        (gradient,) = torch.autograd.grad(module(x).square().sum(), x)
        x = (x + 0.1 * gradient.sign()).detach()
    found: torch.Tensor = module(x).square().sum()
    return found


def build() -> torch.nn.Sequential:
    """Three layers."""
    torch.manual_seed(0)
    linear = torch.nn.Linear
    return torch.nn.Sequential(linear(4, 4), torch.nn.Tanh(), linear(4, 4), torch.nn.Tanh(), linear(4, 1))


def gradients(stage: int, adversarial: bool) -> dict[str, float]:
    """The norms of the second step's, with a rate of zero, so that all steps have the same ones."""
    import deepspeed

    model = build()
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
        "gradient_clipping": 0.0,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.backward(loss(engine, adversarial))
    engine.step()
    engine.backward(loss(engine, adversarial))
    return {name: float(deepspeed.utils.safe_get_full_grad(p).norm()) for name, p in model.named_parameters()}


def main() -> int:
    """1 if a gradient is another one than that without DeepSpeed."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        for adversarial in (False, True):
            plain = build()
            loss(plain, adversarial).backward()  # type: ignore[no-untyped-call]
            expected = {name: float(p.grad.norm()) for name, p in plain.named_parameters() if p.grad is not None}
            for stage in (1, 2, 3):
                what = f"stage {stage}, {'with' if adversarial else 'without'} autograd.grad"
                try:
                    found = gradients(stage, adversarial)
                except IndexError as error:
                    wrong = True
                    print(f"{what}: IndexError: {error}")
                    continue
                ratios = {name: round(found[name] / norm, 3) for name, norm in expected.items()}
                wrong = wrong or any(abs(ratio - 1) > 0.01 for ratio in ratios.values())
                print(f"{what}: gradients / expected ones {ratios}")
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
