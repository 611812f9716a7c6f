"""DeepSpeed's configuration of a Scenario, and the settings that its documentation lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from zerobench.model_specs import Odd
from zerobench.oracles.optimizer import groups, make_optimizer
from zerobench.oracles.rules import hyperparameters
from zerobench.oracles.scaler import DeepSpeedScaler
from zerobench.scenario import Scenario
from zerobench.subjects import client_settings, group_settings, plain_settings
from zerobench.subjects.reference import shared_config

#: DeepSpeed's names of a Scenario's rules. Its own Lion is a kernel, for CUDA or for offload; a client passes one.
_TYPES = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "adagrad": "Adagrad"}

_PAGE = "https://www.deepspeed.ai/docs/config-json/"
_SCALER = "https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/runtime/fp16/loss_scaler.py"
_READING = "https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/utils/tensor_fragment.py"
_LINEAR = "https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/runtime/zero/linear.py"
_SAVING = "https://deepspeed.readthedocs.io/en/latest/model-checkpointing.html"
#: The most elements of a bucket that torch fills with NaN, as deterministic algorithms do: DeepSpeed makes two buckets
#: in their full size, which would take 4 GB of each rank.
_FILLED_BUCKET = 10_000_000


def config(scenario: Scenario, torch_adam: bool = True) -> dict[str, Any]:
    """DeepSpeed's configuration of a Scenario."""
    out = shared_config(scenario)
    out |= {"zero_allow_untested_optimizer": True}
    if _is_configured(scenario):
        out["optimizer"] = _optimizer(scenario, torch_adam)
    if "cpu" in (scenario.optimizer_at, scenario.parameters_at):
        out["zero_force_ds_cpu_optimizer"] = False  # torch's rules on the CPU
        pin = {"pin_memory": scenario.device != "cpu"}
        out["zero_optimization"] |= {
            "offload_optimizer": {"device": scenario.optimizer_at, "ratio": scenario.offload_ratio} | pin,
            "offload_param": {"device": scenario.parameters_at} | pin,
        }
    if scenario.autocast:  # gradients are reduced in the dtype of autocast if they are of one of these modules
        out["torch_autocast"] = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}
    out["zero_optimization"] |= {
        "allgather_bucket_size": scenario.allgather_bucket + scenario.allgather_bucket % 2,  # it must be even
        "stage3_max_reuse_distance": scenario.max_live,
    }
    if client_settings.FILLED in scenario.settings:
        out["zero_optimization"]["reduce_bucket_size"] = min(scenario.reduce_bucket, _FILLED_BUCKET)
    return out


def parameter_groups(scenario: Scenario, trained: Mapping[str, nn.Parameter], model: nn.Module) -> list[dict[str, Any]]:
    """The groups that the client passes, or those of its optimizer."""
    return group_settings.with_others(groups(scenario.optimizer, trained), model, scenario)


def trained_groups(scenario: Scenario, found: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Those of an engine's optimizer in which the client sets hyperparameters."""
    return group_settings.trained(found, scenario)


def client_optimizer(scenario: Scenario, trained: Mapping[str, nn.Parameter], model: nn.Module) -> Optimizer | None:
    """The optimizer that the client passes; None if the configuration has one."""
    if _is_configured(scenario):
        return None
    grouped = parameter_groups(scenario, trained, model)
    return make_optimizer(scenario.optimizer, grouped, **plain_settings.form(scenario))


def _is_configured(scenario: Scenario) -> bool:
    """Whether the configuration names the optimizer. It names DeepSpeed's own Adagrad if that is offloaded, which has
    no ``lr_decay``. Otherwise the client's would be replaced (reports/findings/deepspeed/adagrad-groups)."""
    if client_settings.STEPPED in scenario.settings and scenario.optimizer.name != "adagrad":
        return False
    return scenario.optimizer.name in _TYPES and not (
        scenario.optimizer.name == "adagrad" and "cpu" in (scenario.optimizer_at, scenario.parameters_at)
    )


def _optimizer(scenario: Scenario, torch_adam: bool) -> dict[str, Any]:
    """torch's classes on a CPU, unless DeepSpeed's own is compiled; on CUDA DeepSpeed's fused Adam."""
    spec = scenario.optimizer
    adam = {"torch_adam": scenario.device == "cpu" and torch_adam, "adam_w_mode": spec.name == "adamw"}
    params = hyperparameters(spec) | plain_settings.form(scenario) | (adam if spec.name in ("adam", "adamw") else {})
    return {"type": _TYPES[spec.name], "params": params}


def unsupported(scenario: Scenario, torch_adam: bool) -> str | None:
    """The features that DeepSpeed documents as missing; any other failure is a finding (see zerobench.findings)."""
    plain, model = not scenario.placement.optimizer, scenario.model
    if (reason := _unsupported_form(scenario, torch_adam)) is not None:
        return reason
    buffers = isinstance(model, Odd) and model.buffers and scenario.world > 1 and not scenario.placement.parameters
    missing = {
        f"has no replicas of its shards since 0.19.8, which removed MiCS: {_PAGE}": scenario.replicate > 1,
        f"accumulates in the model's dtype at stage 0, and raises NotImplementedError otherwise: {_PAGE}": (
            plain and scenario.accumulator_dtype not in (None, scenario.dtype)
        ),
        f"casts a weight at each of its uses under autocast at stage 3, which sums other roundings: {_LINEAR}": (
            scenario.autocast and scenario.placement.parameters and _uses_again(scenario)
        ),
        f"offloads a part of the optimizer with its own Adam only, at stage 3: {_PAGE}": (
            scenario.optimizer_at == "cpu" and scenario.offload_ratio != 1.0 and (torch_adam or scenario.stage < 3)
        ),
        f"turns a caller's autocast off without torch_autocast, which is for fp32 parameters: {_PAGE}": (
            scenario.autocast and scenario.dtype != "fp32"
        ),
        f"checks for overflow in fp16 and bf16 only: {_PAGE}": plain and scenario.dtype == "fp32" and scenario.poison,
        f"saves the buffers of rank 0 alone below stage 3, and each rank has its own: {_SAVING}": (
            scenario.resumed and buffers
        ),
        "is not asked to offload to files here: its own kernels would have to be compiled": (
            "nvme" in (scenario.optimizer_at, scenario.parameters_at)
        ),
        "takes only a whole number as the least loss scale": (
            scenario.dtype == "fp16" and not scenario.loss_scale.minimum.is_integer()
        ),
        f"ends the run if a step overflows at the least loss scale: {_SCALER}": (
            not plain and _overflows_at_minimum(scenario)
        ),
        f"reads no momentum that torch.optim.SGD has not made, as it makes none if the momentum is 0: {_READING}": (
            not plain and scenario.optimizer.name == "sgd" and 0.0 in scenario.momentum_factors
        ),
    }
    return next((f"DeepSpeed {what}" for what, there in missing.items() if there), None)


def _unsupported_form(scenario: Scenario, torch_adam: bool) -> str | None:
    """The reason against a form of torch's optimizers, or None."""
    form = plain_settings.form(scenario)
    if client_settings.STEPPED in scenario.settings and not (torch_adam and scenario.device == "cpu"):
        return f"{client_settings.STEPPED} is of an optimizer of torch's that the client passes: {_PAGE}"
    if form and scenario.optimizer.name in ("adam", "adamw") and not (torch_adam and scenario.device == "cpu"):
        return f"DeepSpeed's own Adam has no {min(form)}: {_PAGE}"
    return plain_settings.unsupported_form(scenario)


def _uses_again(scenario: Scenario) -> bool:
    """Whether a micro-step may use a weight twice."""
    model = scenario.model
    return scenario.forwards != "one" or (isinstance(model, Odd) and (model.repeats or model.shares))


def _overflows_at_minimum(scenario: Scenario) -> bool:
    """Whether a bad step finds the dynamic loss scale at its minimum, and no hysteresis left."""
    spec, bad = scenario.loss_scale, scenario.bad_steps
    if not scenario.scales_dynamically:
        return False
    scaler = DeepSpeedScaler(spec)
    for step in range(scenario.steps):
        if step in bad and scaler.scale == spec.minimum and scaler.hysteresis == 1:
            return True
        scaler.update(step in bad)
    return False
