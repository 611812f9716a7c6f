"""Bounds: the most bytes of each state that a stage allows, for an engine of which no closed form is known.

A stage that shards a state leaves one copy of it on all ranks together. Engines pad it on each rank, to whole rows of a
parameter or to whole chunks. If an engine assigns whole parameters to ranks, it pads nothing, and some ranks have more
than others. So the sum over ranks is bounded, and not each rank.
"""

from __future__ import annotations

from torch import nn

from zerobench.oracles.rules import RULES, state_keys
from zerobench.scenario import Scenario
from zerobench.subject import Bytes

#: Bytes of the messages in which ranks agree on a model and on the content of a checkpoint, by name and shape.
AGREEMENT = 1 << 18
_FP32 = 4


def most_of_all_ranks(scenario: Scenario, model: nn.Module) -> Bytes:
    """Bytes of the states that the stage shards, of all ranks together; in fp32, in which there are no masters."""
    assert scenario.dtype == "fp32"
    trained = [p for p in model.parameters() if p.requires_grad]
    keys, count = len(state_keys(scenario.optimizer)), RULES[scenario.optimizer.name].counts_steps
    counts = _FP32 * scenario.world * len(trained) if count else 0
    sharded, found = scenario.placement, Bytes()
    if sharded.optimizer:
        found["optimizer"] = _FP32 * keys * _padded(scenario, trained) + counts
    if sharded.gradients:
        found["gradients"] = _FP32 * _padded(scenario, trained)
    if sharded.parameters:
        found["parameters"] = fp32(scenario, model)
    return found


def fp32(scenario: Scenario, model: nn.Module) -> int:
    """Bytes of all parameters in fp32, and padding."""
    return _FP32 * _padded(scenario, list(model.parameters()))


def _padded(scenario: Scenario, parameters: list[nn.Parameter]) -> int:
    """Elements, with a row or a chunk more of each parameter on each rank."""
    return sum(p.numel() + scenario.world * max(scenario.chunk, _row(p)) for p in parameters)


def _row(p: nn.Parameter) -> int:
    return p.numel() // max(1, p.shape[0]) if p.dim() else 1


def most_in_backward(scenario: Scenario, model: nn.Module) -> int:
    """Bytes of tensors that a backward may add on one rank, if gradients are sharded: its shard of the gradients, and
    ten times the largest block, if a bucket holds one. Three buckets may be on their way, each packed, as it is sent
    and as it is received; the tenth is made meanwhile. The gradients of two forwards wait for each other, so that all
    may be there at once."""
    trained = [p for p in model.parameters() if p.requires_grad]
    waiting = sum(p.numel() for p in trained) if scenario.forwards == "two" else 0
    return _FP32 * (-(-_padded(scenario, trained) // scenario.world) + waiting) + of_ten_blocks(model)


def of_ten_blocks(model: nn.Module) -> int:
    """Ten times the bytes of the largest block."""
    return 10 * of_a_block(model)


def of_a_block(model: nn.Module) -> int:
    """The bytes of the largest block."""
    blocks = model.get_submodule("blocks").children()
    return _FP32 * max(sum(p.numel() for p in block.parameters()) for block in blocks)
