"""The largest difference, element by element, between two right sums of the same leaves.

Notation of Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.1: u is the unit roundoff (2^-24 in
fp32, 2^-11 in fp16, 2^-8 in bf16), a rounding multiplies by (1 + d) with |d| <= u, and k of them multiply by (1 + t)
with |t| <= gamma_k = k u / (1 - k u) (his lemma 3.1).

Let x_1 .. x_L be the leaves' contributions to one element of the mean gradient. On its way into the result each goes
through at most L - 1 additions, in any order (his section 4.2), and through at most A + 2 scalings and casts: by the
loss scale or 1/A, by 1/N once per reduction, and to the dtypes of the wire and the accumulator. So an engine's result
differs from the exact mean by at most gamma_k m, with k = L + A + 1 and m = sum |x_i| / (L * loss scale); two engines
differ by at most twice that. For A = 1 in fp32 this is 2 (gamma_{L-1} + 3 u) m up to terms of u^2. If any dtype on
the way is coarser than fp32, u is that of the coarsest. A scaling or cast, but no addition, may also underflow, which
costs at most half of the smallest subnormal number of its dtype each time. This dtype need not be the coarsest: fp16
has finer roundings than bf16, and larger subnormal numbers.

The leaves' own gradients must be the same bits in both engines. An engine that divides the loss by A before backward
has them only if A is a power of two, and in fp16 only if nothing underflows. In other cases the bound also has the sum
of the absolute differences that dividing makes. If a forward uses a parameter twice, its gradient of a leaf is a sum of
two, which an engine may add to its accumulator one after the other. In 16 bits, also under autocast, with A > 1 this
parameter has no bound. Nor has it one if a leaf has two forwards: an engine that makes views of a parameter in each
forward, as FSDP1 does, first adds the uses of each forward, and the sum of their absolute values is not known.

A reentrant recomputation runs a backward of its own, so a parameter with n uses receives n contributions of a leaf, and
an engine may round and send each by itself. Then the x_i are the n L contributions, and k has n L in place of L. The
oracle's own gradient of a leaf is also such a sum, whose n - 1 roundings are among these.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zerobench.model_specs import Odd, Vit
from zerobench.scenario import Scenario
from zerobench.subject import State
from zerobench.workload.data import DTYPES
from zerobench.workload.groups import group_of, specs


def gradient_bound(scenario: Scenario, magnitudes: State, lost: State | None = None) -> State:
    """The largest difference between two right engines' mean gradients: fp64, one bound for each element, by name.

    ``magnitudes`` are m above, and ``lost`` the changes by dividing; ``canonical(..., magnitudes=True)`` records both
    for a step.
    """
    divided = dict(lost or {})
    divided |= {
        name: torch.full_like(m, torch.inf) for name, m in magnitudes.items() if not _is_bounded(scenario, name)
    }
    subnormal = max(_smallest(dtype) for dtype in _dtypes(scenario))
    absolute = scenario.leaves * (scenario.accumulation + 2) * subnormal / _least_loss_scale(scenario)
    found = {}
    for name, m in magnitudes.items():
        times = _contributions(scenario, name)
        found[name] = relative_bound(scenario, times) * m + times * absolute + divided.get(name, 0)
    return found


def step_bound(scenario: Scenario, gradients: State, parameters: State) -> float:
    """The largest relative difference, in the 2-norm, between the parameters of two right engines after a first step of
    SGD, if their mean gradients differ by at most ``gradients``: infinite if one of these is. ``parameters`` are those
    after the step."""
    groups = specs(scenario.optimizer)
    moved = (
        groups[group_of(scenario.optimizer, name, bound.ndim)].lr * bound.double() for name, bound in gradients.items()
    )
    squares = sum(float(each.square().sum()) for each in moved)
    return math.sqrt(squares / (sum(float(each.double().square().sum()) for each in parameters.values()) or 1.0))


def _is_bounded(scenario: Scenario, name: str) -> bool:
    """Whether the sum of a parameter's gradients has a bound."""
    if scenario.forwards == "two" and _uses_in_forward(scenario, name) > 1:
        return False
    in_fp32 = scenario.dtype == "fp32" and not scenario.autocast
    return scenario.accumulation == 1 or in_fp32 or _uses(scenario, name) == 1


def relative_bound(scenario: Scenario, contributions: int = 1) -> float:
    """The largest difference between two right engines' sums, as a multiple of m, if nothing underflows.

    ``contributions`` is their number in each leaf.
    """
    return 2 * gamma(contributions * scenario.leaves + scenario.accumulation + 1, _coarsest(scenario))


def gamma(roundings: int, dtype: torch.dtype) -> float:
    """Higham's gamma_k = k u / (1 - k u); infinite if k u is one or more, because then there is no bound."""
    ku = roundings * torch.finfo(dtype).eps / 2
    return ku / (1 - ku) if ku < 1 else float("inf")


def excess(got: Tensor, expected: Tensor, bound: Tensor) -> Tensor:
    """The elements of ``got`` that are further from ``expected`` than ``bound`` allows, or not a number: bool."""
    return ~((got.double() - expected.double()).abs() <= bound)


def is_used_once(scenario: Scenario, name: str) -> bool:
    """Whether a leaf uses a parameter once, so that its gradient is one value of autograd's."""
    return _uses(scenario, name) == 1


def _uses(scenario: Scenario, name: str) -> int:
    """The uses of a parameter in the forwards of a leaf."""
    return _uses_in_forward(scenario, name) * (2 if scenario.forwards == "two" else 1)


def _uses_in_forward(scenario: Scenario, name: str) -> int:
    model = scenario.model
    if isinstance(model, Odd) and name.startswith("blocks.0."):
        linear = ".norm." not in name
        whole = 1 + model.reused + model.listed_twice
        return whole + (model.part_alone and linear) + (model.tied_blocks and linear and "weight" in name)
    return 1 + (not isinstance(model, Vit) and model.tied and name in ("stem.weight", "tokens.weight"))


def _contributions(scenario: Scenario, name: str) -> int:
    """The contributions of a leaf to a parameter's gradient, which autograd delivers one after the other."""
    apart = scenario.model.recompute == "reentrant" and name.startswith("blocks.")
    return _uses(scenario, name) if apart else 1


def _coarsest(scenario: Scenario) -> torch.dtype:
    return max(_dtypes(scenario), key=lambda dtype: torch.finfo(dtype).eps)


def _dtypes(scenario: Scenario) -> set[torch.dtype]:
    """The dtypes of sums and of their storage. torch's own engines accumulate in the model's dtype, unless the Scenario
    names fp32 for communication and accumulation."""
    if scenario.communication_dtype == scenario.accumulator_dtype == "fp32":
        return {torch.float32}
    named = (scenario.dtype, scenario.communication_dtype, scenario.accumulator_dtype)
    return {torch.float32, *(DTYPES[name] for name in named if name)}


def _smallest(dtype: torch.dtype) -> float:
    """The smallest subnormal number: twice the error of an underflow, as two engines may each make it."""
    info = torch.finfo(dtype)
    return info.tiny * info.eps


def _least_loss_scale(scenario: Scenario) -> float:
    """That of a dynamic one if every step halves it; DeepSpeed's may begin below its minimum, to which an overflow
    raises it."""
    if scenario.dtype != "fp16":
        return 1.0
    spec = scenario.loss_scale
    first, last = 2.0**spec.initial_power, 2.0 ** (spec.initial_power - scenario.steps)
    return spec.static or (min(first, max(spec.minimum, last)) if spec.scaler == "deepspeed" else last)
