"""``estimate_zero*_model_states_mem_needs``: the bytes of training states in 16 bits, for a model and a machine.

A rank has, for each parameter: 2 B of weights, 4 B of the gradient's sum, and 12 B of the master and Adam's two states.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

_WEIGHTS, _GRADIENT, _OPTIMIZER = 2, 4, 12


def _sizes(model: nn.Module) -> tuple[int, int]:
    """The parameters of the model, and of the module that has most."""
    layers = (sum(p.numel() for p in module.parameters(recurse=False)) for module in model.modules())
    return sum(p.numel() for p in model.parameters()), max(layers, default=0)


def estimate_zero2_model_states_mem_needs(
    total_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    additional_buffer_factor: float = 1.5,
) -> tuple[int, int]:
    """Bytes of host memory on a node, and of each GPU, at stage 2."""
    world = num_gpus_per_node * num_nodes
    sharded = total_params * (_GRADIENT + _OPTIMIZER)
    host = sharded // num_nodes if cpu_offload else 0
    device = _WEIGHTS * total_params + (0 if cpu_offload else sharded // world)
    return int(host * additional_buffer_factor), device


def estimate_zero3_model_states_mem_needs(
    total_params: int,
    largest_layer_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    cpu_offload_params: bool = True,
    zero_init: bool = True,
    additional_buffer_factor: float = 1.5,
) -> tuple[int, int, int]:
    """Bytes of host memory on a node, of each GPU, and of the largest layer when it is whole, at stage 3.

    Without ``zero_init`` each rank has the whole model in fp32 on the host before it is sharded.
    """
    world, layer = num_gpus_per_node * num_nodes, 2 * _WEIGHTS * largest_layer_params
    offloaded = (_GRADIENT + _OPTIMIZER) * cpu_offload + _WEIGHTS * cpu_offload_params
    kept = _WEIGHTS + _GRADIENT + _OPTIMIZER - offloaded
    construction = 4 * (largest_layer_params if zero_init else total_params) * num_gpus_per_node
    host = max(offloaded * total_params // num_nodes, construction)
    return int(host * additional_buffer_factor), layer + kept * total_params // world, layer


def estimate_zero2_model_states_mem_needs_all_live(
    model: nn.Module, num_gpus_per_node: int = 1, num_nodes: int = 1, additional_buffer_factor: float = 1.5
) -> None:
    """Print the estimates of stage 2 for a model."""
    estimate_zero2_model_states_mem_needs_all_cold(
        _sizes(model)[0], num_gpus_per_node, num_nodes, additional_buffer_factor
    )


def estimate_zero2_model_states_mem_needs_all_cold(
    total_params: int, num_gpus_per_node: int = 1, num_nodes: int = 1, additional_buffer_factor: float = 1.5
) -> None:
    """Print the estimates of stage 2 for a number of parameters."""
    _print_header(num_nodes, num_gpus_per_node, f"{total_params / 1e6:.0f}M total params")
    for offload in (True, False):
        host, device = estimate_zero2_model_states_mem_needs(
            total_params, num_gpus_per_node, num_nodes, offload, additional_buffer_factor
        )
        _print_row(host, device, f"offload_optimizer={_place(offload):4}")


def estimate_zero3_model_states_mem_needs_all_live(
    model: nn.Module, num_gpus_per_node: int = 1, num_nodes: int = 1, additional_buffer_factor: float = 1.5
) -> None:
    """Print the estimates of stage 3 for a model."""
    estimate_zero3_model_states_mem_needs_all_cold(
        *_sizes(model), num_gpus_per_node, num_nodes, additional_buffer_factor
    )


def estimate_zero3_model_states_mem_needs_all_cold(
    total_params: int,
    largest_layer_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
) -> None:
    """Print the estimates of stage 3 for numbers of parameters."""
    model = f"{total_params / 1e6:.0f}M total params, {largest_layer_params / 1e6:.0f}M largest layer params"
    _print_header(num_nodes, num_gpus_per_node, model)
    for params, optimizer, zero_init in _settings():
        host, device, _ = estimate_zero3_model_states_mem_needs(
            total_params,
            largest_layer_params,
            num_gpus_per_node,
            num_nodes,
            optimizer,
            params,
            zero_init,
            additional_buffer_factor,
        )
        offload = f"offload_param={_place(params)}, offload_optimizer={_place(optimizer)}"
        _print_row(host, device, f"{offload}, zero_init={int(zero_init)}")


def _place(offloaded: bool) -> str:
    return "cpu" if offloaded else "none"


def _settings() -> Iterator[tuple[bool, bool, bool]]:
    for params, optimizer in ((True, True), (False, True), (False, False)):
        for zero_init in (True, False):
            yield params, optimizer, zero_init


def _print_header(nodes: int, gpus: int, model: str) -> None:
    print("Estimated memory needed for params, optim states and gradients for a:")
    print(f"HW: Setup with {nodes} node{'s' * (nodes > 1)}, {gpus} GPU{'s' * (gpus > 1)} per node.")
    print(f"SW: Model with {model}.")
    print("  per CPU  |  per GPU |   Options")


def _print_row(host: int, device: int, options: str) -> None:
    print(f"  {host / 2**30:7.2f}GB | {device / 2**30:6.2f}GB | {options}")
