"""Jobs of one rank on any device: models and loops whose numbers must not depend on the stage or on offload.

A GPU computes some layers by code of its own: recurrent ones and convolutions by cuDNN, attention by fused kernels. It
also copies states to and from the host while it computes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from zerobench.suites.compat import loops

_VOCAB, _TOKENS, _WIDTH = 97, 16, 32


class Block(nn.Module):
    """Attention and an MLP, recomputed in the backward if ``recompute`` says how."""

    def __init__(self, recompute: str = "none", dropout: float = 0.0) -> None:
        super().__init__()
        self.recompute, self.drop = recompute, nn.Dropout(dropout)
        self.norm, self.qkv = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 3 * _WIDTH)
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))

    def inner(self, x: Tensor) -> Tensor:
        """The block without recomputation."""
        query, key, value = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4)
        heads = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        found = heads.transpose(1, 2).reshape(x.shape)
        added: Tensor = self.drop(found) + self.drop(self.mlp(found))
        return x + added

    def forward(self, x: Tensor) -> Any:
        if self.recompute == "none" or not self.training:
            return self.inner(x)
        if self.recompute == "deepspeed":
            import deepspeed

            return deepspeed.checkpointing.checkpoint(self.inner, x)
        return checkpoint(self.inner, x, use_reentrant=self.recompute == "reentrant")


class Recurrent(nn.Module):
    """Two layers in both directions, whose weights cuDNN takes as one buffer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layers = getattr(nn, kind)(_WIDTH, _WIDTH // 2, num_layers=2, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Any:
        return self.layers(x)[0]


class Convolutions(nn.Module):
    """Convolutions and norms over images in the channels_last format."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(_TOKENS, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, _TOKENS, 1)
        )

    def forward(self, x: Tensor) -> Any:
        images = x.view(*x.shape[:2], 4, -1).to(memory_format=torch.channels_last)
        return self.layers(images).reshape(x.shape)


class Model(nn.Module):
    """Tokens, the layers in between, and a head with the embedding's weight; the output is the loss."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.embedding, self.layers = nn.Embedding(_VOCAB, _WIDTH), nn.ModuleList(layers)
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _VOCAB, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Any:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        scores = self.head(self.norm(x))[:, :-1].float()
        return functional.cross_entropy(scores.reshape(-1, _VOCAB), tokens[:, 1:].flatten())


def blocks(recompute: str = "none", dropout: float = 0.0) -> list[nn.Module]:
    """Three blocks."""
    return [Block(recompute, dropout) for _ in range(3)]


def recurrent(kind: str) -> list[nn.Module]:
    """Layers of a kind of torch.nn."""
    return [Recurrent(kind)]


def convolutions() -> list[nn.Module]:
    """Layers of images."""
    return [Convolutions()]


def encoder() -> list[nn.Module]:
    """torch's own encoder, which has a fast path for evaluations."""
    layer = nn.TransformerEncoderLayer(_WIDTH, 4, 2 * _WIDTH, dropout=0.0, batch_first=True)
    return [nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)]


@dataclass(frozen=True)
class Job:
    """A model with a configuration and a loop.

    Args:
        loop: trains an engine, and returns its numbers.
        layers: of the model.
        dtype: ``fp32``, ``bf16`` or ``fp16``.
        offload: the target of ``offload_optimizer`` and, at stage 3, of ``offload_param``.
        keys: more of the configuration.
        optimizer: of the client, from the model's parameters; by default the configuration has AdamW.
    """

    loop: Callable[[Any, str], list[float]]
    layers: Callable[[], list[nn.Module]] = blocks
    dtype: str = "bf16"
    offload: str = "none"
    keys: dict[str, Any] = field(default_factory=dict)
    optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer] | None = None

    def engine(self, stage: int, device: str, folder: str) -> Any:
        """A new engine with the initial values of every other."""
        torch.manual_seed(0)
        model = Model(*self.layers())
        given = self.optimizer(model.parameters()) if self.optimizer else None
        config = self._config(stage, folder)
        return loops.deepspeed(device).initialize(model=model, optimizer=given, config=config)[0]

    def _config(self, stage: int, folder: str) -> dict[str, Any]:
        target = {"device": self.offload, "pin_memory": True, "nvme_path": folder}
        zero: dict[str, Any] = {"stage": stage, "stage3_param_persistence_threshold": 0}
        if self.offload != "none" and stage:
            zero |= {"offload_optimizer": target} | ({"offload_param": target} if stage == 3 else {})
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 1.0,
            "zero_optimization": zero,
        }
        if self.optimizer is None:
            config["optimizer"] = {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.01}}
        if self.dtype != "fp32":
            config[self.dtype] = {"enabled": True} | (
                {"initial_scale_power": 18, "hysteresis": 1} if self.dtype == "fp16" else {}
            )
        return {**config, **self.keys}

    def run(self, stage: int, device: str) -> list[float]:
        """The numbers of the job at a stage."""
        with tempfile.TemporaryDirectory() as folder:
            engine = partial(self.engine, stage, device, folder)
            return self.loop(engine, folder)


def _tokens(engine: Any, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(_VOCAB, (4, _TOKENS), generator=draw).to(engine.device)


def _trained(engine: Any, first: int, last: int, each: Callable[[int], list[float]] = lambda _: []) -> list[float]:
    """The losses of micro-steps, the numbers of ``each`` after them, and an evaluation."""
    found: list[float] = []
    torch.manual_seed(first)
    for number in range(first, last):
        loss = engine(_tokens(engine, number))
        engine.backward(loss)
        engine.step()
        found += [loss.item(), *each(number)]
    engine.eval()
    with torch.no_grad():
        found.append(engine(_tokens(engine, 100)).item())
    engine.train()
    return found


def trains(make: Any, folder: str) -> list[float]:
    """Eight micro-steps."""
    engine = make()
    found = _trained(engine, 0, 8)
    engine.destroy()
    return found


def edits(make: Any, folder: str) -> list[float]:
    """States are read, and weights are edited within GatheredParameters and by safe_set_full_fp32_param."""
    import deepspeed

    engine = make()
    one, other = list(engine.module.parameters())[1:3]

    def edit(number: int) -> list[float]:
        if number % 2 == 0:
            return []
        with deepspeed.zero.GatheredParameters([one], modifier_rank=0), torch.no_grad():
            one.mul_(0.5)
        weight = deepspeed.utils.safe_get_full_fp32_param(other)
        deepspeed.utils.safe_set_full_fp32_param(other, weight * 1.01)
        moment = deepspeed.utils.safe_get_full_optimizer_state(other, "exp_avg")
        return [weight.double().sum().item(), moment.double().sum().item(), float(engine.get_global_grad_norm())]

    found = _trained(engine, 0, 8, edit)
    engine.destroy()
    return found


def gradients(make: Any, folder: str) -> list[float]:
    """A gradient is read and set between the backward and the step."""
    import deepspeed

    engine, found = make(), []
    parameter = list(engine.module.parameters())[1]
    for number in range(4):
        engine.backward(engine(_tokens(engine, number)))
        gradient = deepspeed.utils.safe_get_full_grad(parameter)
        found.append(gradient.double().sum().item())
        if number % 2:
            deepspeed.utils.safe_set_full_grad(parameter, gradient * 2)
        engine.step()
    found += _trained(engine, 4, 6)
    engine.destroy()
    return found


def resumes(make: Any, folder: str) -> list[float]:
    """A new engine goes on with a checkpoint."""
    engine = make()
    found = _trained(engine, 0, 4)
    engine.save_checkpoint(folder, client_state={"samples": 16})
    engine.destroy()
    engine = make()
    assert engine.load_checkpoint(folder)[1]["samples"] == 16
    found += _trained(engine, 4, 8)
    engine.destroy()
    return found


def takes_turns(make: Any, folder: str) -> list[float]:
    """Two engines alternate."""
    engines, found = [make(), make()], []
    for number in range(4):
        for index, engine in enumerate(engines):
            found += _trained(engine, number + index, number + index + 1)
    for engine in engines:
        engine.destroy()
    return found


def _adamw(parameters: Iterator[nn.Parameter], **form: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3, **form)


_AUTOCAST = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
JOBS: dict[str, Job] = {
    **{
        f"{loop.__name__}-{dtype}": Job(loop, dtype=dtype)
        for loop in (trains, edits, resumes)
        for dtype in ("fp32", "bf16", "fp16")
    },
    **{
        f"{loop.__name__}-{place}": Job(loop, offload=place)
        for loop in (trains, edits, resumes)
        for place in ("cpu", "nvme")
    },
    "gradients": Job(gradients, keys={"gradient_accumulation_steps": 1}),
    "gradients-cpu": Job(gradients, keys={"gradient_accumulation_steps": 1}, offload="cpu"),
    "trains-fp16-cpu": Job(trains, dtype="fp16", offload="cpu"),
    "takes_turns": Job(takes_turns),
    "autocast": Job(trains, dtype="fp32", keys=_AUTOCAST),
    "dropout": Job(trains, partial(blocks, dropout=0.1)),
    "reentrant": Job(trains, partial(blocks, "reentrant", 0.1)),
    "non_reentrant": Job(trains, partial(blocks, "non_reentrant", 0.1)),
    "checkpointing": Job(trains, partial(blocks, "deepspeed", 0.1)),
    "checkpointing-cpu": Job(trains, partial(blocks, "deepspeed", 0.1), offload="cpu"),
    "fused": Job(trains, optimizer=partial(_adamw, fused=True)),
    "foreach": Job(trains, optimizer=partial(_adamw, foreach=True)),
    **{kind: Job(trains, partial(recurrent, kind)) for kind in ("LSTM", "GRU", "RNN")},
    "LSTM-fp32": Job(trains, partial(recurrent, "LSTM"), dtype="fp32"),
    "convolutions": Job(trains, convolutions),
    "convolutions-fp32": Job(trains, convolutions, dtype="fp32"),
    "encoder": Job(trains, encoder),
    "encoder-fp32": Job(trains, encoder, dtype="fp32"),
}
