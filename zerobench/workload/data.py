"""The data of a Scenario: every leaf of every step, from the seed alone, on any rank of any world."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zerobench.errors import UsageError
from zerobench.model_specs import Gpt, Odd, Vit
from zerobench.scenario import Dtype, PoisonedBy, Scenario
from zerobench.subject import Batch

DTYPES: dict[Dtype, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

CHANNELS = 3  # of an image

_POISONS: dict[PoisonedBy, dict[str, float | bool]] = {
    "inf": {"scale": math.inf},
    "nan": {"scale": math.nan},
    "backward": {"undefined": True},
}
_HELD_OUT = -1  # not a step of any training
_BEFORE = 64  # elements of a larger tensor before a part of it
_TRAINED = 0.9  # the share of a text that training sees


def leaf(scenario: Scenario, step: int, index: int) -> Batch:
    """Leaf ``index`` of ``step``: micro-step ``index // world`` on rank ``index % world``, on the Scenario's device.

    A gpt's batch holds ``tokens`` and ``targets``, int64 [micro_batch, context]; a vit's ``images``, [micro_batch, 3,
    image, image] in the Scenario's dtype, and ``labels``, int64 [micro_batch]; an odd model's ``x`` and ``y``,
    [micro_batch, width] in the Scenario's dtype, and ``route``. A poisoned leaf also holds an infinite or
    undefined ``scale`` of the loss, or for an odd model ``undefined`` to spoil the gradients of its stem alone, and a
    zeroed one a ``scale`` of zero. Sample s of a step (leaf ``s //
    micro_batch``) is the same however a step's samples are cut into leaves, except that dyadic targets are multiplied
    by the number of leaves, so that their mean over leaves is exact. Every second leaf of a ragged Scenario has half of
    the samples.

    Raises:
        UsageError: if the data do not fit the model, or if a text is missing or too short.
    """
    batch, here = _batch(scenario, step, index), (step, index)
    if here in scenario.poison:
        return batch | _POISONS[scenario.poison_by]
    return batch | ({"scale": 0.0} if here in scenario.zeroed else {})


def held_out(scenario: Scenario, number: int = 0) -> Batch:
    """A batch of the same form that no step trains on, twice as large as one that is trained on; a text's comes from
    its last tenth. Each ``number`` has other samples."""
    return _batch(scenario.but(micro_batch=2 * scenario.micro_batch, ragged=False), _HELD_OUT, number)


def held_out_in(scenario: Scenario, step: int) -> Batch:
    """The batch of the evaluations that a client makes in a step, which in every second step is another one, a part of
    larger tensors: an engine that keeps a batch, or a loss, for the next evaluation shows."""
    batch = held_out(scenario, step % 2)
    return {name: part_of_larger(value) for name, value in batch.items()} if step % 2 else batch


def part_of_larger(value: Any) -> Any:
    """A tensor as a part of a larger one, behind other values, as a slice of a data set is; other values as they are.

    It begins at a multiple of 64 bytes, as a tensor of its own does, so that libraries compute the same bits.
    """
    if not isinstance(value, Tensor):
        return value
    memory = torch.zeros(_BEFORE + value.numel(), dtype=value.dtype, device=value.device)
    return memory[_BEFORE:].view(value.shape).copy_(value)


def takes_route(scenario: Scenario, step: int, index: int) -> bool:
    """The ``route`` of a leaf, if it decides which parameters receive a gradient; otherwise False."""
    return isinstance(scenario.model, Odd) and scenario.model.by_route and _route(scenario, step, index)


def seed_leaf(scenario: Scenario, step: int, index: int) -> None:
    """Set torch's random state, on CPU and device, to that of a leaf: its dropout does not depend on the rank."""
    seed = _key("leaf", scenario.seed, step, index)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed records a stack trace for each kind of device
    if scenario.device == "cuda":
        torch.cuda.manual_seed(seed)


def dyadic_weights(model: nn.Module, seed: int) -> None:
    """Set every parameter to -1, 0 or 1: sparse, so that products and sums through many layers stay exact.

    A parameter of one element becomes 1, because a zero could cut the model in two. A step is exact if the canonical
    trainer and its float64 run agree bit for bit; the number of exact steps depends on depth, dtype and learning rate.
    """
    generator = torch.Generator().manual_seed(_key("weights", seed))
    for parameter in model.parameters():
        signs = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
        density = 4 / max(8, parameter.shape[-1]) if parameter.numel() > 1 else 1.0
        kept = torch.rand(parameter.shape, generator=generator) < density
        parameter.data.copy_(signs * kept if parameter.numel() > 1 else torch.ones(parameter.shape))


@functools.lru_cache(maxsize=4)
def text(path: str) -> bytes:
    """The bytes of a file, or of the English of CPython's ``pydoc_data.topics`` if ``path`` is empty.

    Raises:
        UsageError: if there is no such file.
    """
    if not path:
        from pydoc_data.topics import topics  # half a megabyte, needed only here

        return "\n".join(value for _, value in sorted(topics.items())).encode()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the data file {path!r} ({error.strerror}); name a readable text file") from None


def text_digest(path: str) -> str:
    """SHA-256 of :func:`text`, in hexadecimal."""
    return hashlib.sha256(text(path)).hexdigest()


def _batch(scenario: Scenario, step: int, index: int) -> dict[str, Any]:
    sample, (inputs, targets) = _FORMS[scenario.model.kind]
    first = index * scenario.micro_batch
    short = scenario.ragged and (step + index) % 2 == 1
    size = max(1, scenario.micro_batch // 2) if short else scenario.micro_batch
    samples = [sample(scenario, step, first + i) for i in range(size)]
    columns = (torch.stack(column).to(scenario.device) for column in zip(*samples, strict=True))
    batch: dict[str, Any] = dict(zip((inputs, targets), columns, strict=True))
    return batch | ({"route": _route(scenario, step, index)} if scenario.model.kind == "odd" else {})


def _sample_of_odd(scenario: Scenario, step: int, sample: int) -> tuple[Tensor, Tensor]:
    assert isinstance(scenario.model, Odd)
    if scenario.data == "text":
        raise UsageError("an odd model takes no text; choose a gpt, or random or dyadic data")
    generator, shape, dtype = _generator(scenario, step, sample), (2, scenario.model.width), DTYPES[scenario.dtype]
    if scenario.data == "random":
        x, y = torch.randn(shape, generator=generator).to(dtype)
        return x, y
    if scenario.micro_batch & (scenario.micro_batch - 1):
        raise UsageError(f"dyadic data need a micro_batch that is a power of two; got {scenario.micro_batch}")
    x, y = torch.randint(-1, 2, shape, generator=generator).to(dtype)
    return x, y * scenario.leaves


def _sample_of_gpt(scenario: Scenario, step: int, sample: int) -> tuple[Tensor, Tensor]:
    assert isinstance(scenario.model, Gpt)
    generator, length = _generator(scenario, step, sample), scenario.model.context + 1
    if scenario.data == "text":
        window = _window(_region(scenario, step), length, generator)
    elif scenario.data == "random":
        window = torch.randint(scenario.model.vocab, (length,), generator=generator)
    else:
        raise UsageError("a gpt takes no dyadic data, for its arithmetic is not exact; choose an odd model, or text")
    return window[:-1], window[1:]


def _sample_of_vit(scenario: Scenario, step: int, sample: int) -> tuple[Tensor, Tensor]:
    """An image of noise over its class's picture, so that the model can learn."""
    spec, generator = scenario.model, _generator(scenario, step, sample)
    assert isinstance(spec, Vit)
    if scenario.data != "random":
        raise UsageError(f"a vit takes no {scenario.data} data, only random: its images are synthetic")
    label = torch.randint(spec.classes, (), generator=generator)
    of_class = torch.Generator().manual_seed(_key("class", scenario.seed, int(label)))
    shape = (CHANNELS, spec.image, spec.image)
    image = torch.randn(shape, generator=generator) + torch.randn(shape, generator=of_class)
    return image.to(DTYPES[scenario.dtype]), label


#: By kind of model: the function that makes a sample, and the names of its two columns.
_FORMS: dict[str, tuple[Callable[[Scenario, int, int], tuple[Tensor, Tensor]], tuple[str, str]]] = {
    "gpt": (_sample_of_gpt, ("tokens", "targets")),
    "vit": (_sample_of_vit, ("images", "labels")),
    "odd": (_sample_of_odd, ("x", "y")),
}


def _window(region: Tensor, length: int, generator: torch.Generator) -> Tensor:
    if len(region) < length:
        raise UsageError(
            f"the text is too short: its part for training or evaluation has {len(region)} bytes, and a sample takes "
            f"{length}; give a text of at least {10 * length} bytes"
        )
    start = int(torch.randint(len(region) - length + 1, (), generator=generator))
    return region[start : start + length].long()


def _region(scenario: Scenario, step: int) -> Tensor:
    """The bytes that ``step`` may draw from, as uint8."""
    assert isinstance(scenario.model, Gpt)
    if scenario.model.vocab < 256:
        raise UsageError(f"text is bytes and needs a vocab of 256 or more; got {scenario.model.vocab}")
    whole = _encoded(scenario.data_path)
    border = int(len(whole) * _TRAINED)
    return whole[border:] if step == _HELD_OUT else whole[:border]


@functools.lru_cache(maxsize=4)
def _encoded(path: str) -> Tensor:
    read = bytearray(text(path))
    return torch.frombuffer(read, dtype=torch.uint8) if read else torch.empty(0, dtype=torch.uint8)


def _route(scenario: Scenario, step: int, index: int) -> bool:
    """Whether a leaf uses the routed block; evaluation uses it."""
    return step == _HELD_OUT or scenario.route(step, index)


def _generator(scenario: Scenario, step: int, sample: int) -> torch.Generator:
    return torch.Generator().manual_seed(_key("sample", scenario.seed, step, sample))


def _key(purpose: str, *parts: int) -> int:
    """A seed that differs between any two keys, except with a chance of 2^-32."""
    return int.from_bytes(hashlib.sha256(repr((purpose, parts)).encode()).digest()[:4], "big")
