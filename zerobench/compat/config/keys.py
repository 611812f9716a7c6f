"""Three lists of DeepSpeed's keys: honoured, without effect on what is computed, and refused.

A key is given with its section, ``section.key``; a name stands for all keys of its section unless they are listed. The
engine's own schema has the other honoured keys.
"""

from __future__ import annotations

#: Keys that this surface honours itself; the engine never sees them.
HONOURED: dict[str, str] = {
    "scheduler": "the schedule that the engine steps",
    "bfloat16": "an older name of bf16",
    "fp16.auto_cast": "floating-point inputs of forward are cast to fp16",
    "optimizer.params.torch_adam": "an AdamW without weight_decay has torch's, 0.01",
    "torch_autocast": "forwards run under torch.autocast in bf16; gradients travel in fp32",
    "dataloader_drop_last": "for the loader of training_data",
    "steps_per_print": "progress on rank 0",
    "wall_clock_breakdown": "times of forward, backward and step",
    "dump_state": "the resolved configuration on rank 0",
    "activation_checkpointing": "the options of deepspeed.checkpointing, if the script calls its configure()",
    "comms_logger": "deepspeed.comm.log_summary() prints the collectives",
    "flops_profiler": "the FLOPs of a forward on rank 0",
    "memory_breakdown": "memory after each step on rank 0",
    "tensorboard": "monitor",
    "wandb": "monitor",
    "comet": "monitor",
    "csv_monitor": "monitor",
    "zero_optimization.cpu_offload": "an older form of offload_optimizer",
    "zero_optimization.cpu_offload_param": "an older form of offload_param",
    "zero_optimization.cpu_offload_use_pin_memory": "an older form of pin_memory",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": "whether whole weights are exported at stage 3",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": "an older name of the key before",
}

_ITSELF = "the engine arranges this itself"
_DIVIDES_ONCE = "ranks' gradients are summed in fp32 and divided once, so the mean needs no other scale"
_SPEED = "an implementation detail of DeepSpeed"
_ANY_OPTIMIZER = "the engine takes every optimizer whose step is elementwise"

#: Keys that change nothing that is computed, by reason. The log names them once.
WITHOUT_EFFECT: dict[str, str] = {
    "aio": _ITSELF,
    "autotuning": "it belongs to DeepSpeed's launcher",
    "checkpoint": "the engine's checkpoints have one form",
    "communication_data_type_seq_parallel": "there is no sequence parallelism",
    "data_parallel_size": "the ranks give it",
    "datastates_ckpt": "the engine's checkpoints have one form",
    "disable_allgather": "DeepSpeed does not read it",
    "disable_python_gc": _SPEED,
    "gradient_predivide_factor": _DIVIDES_ONCE,
    "prescale_gradients": _DIVIDES_ONCE,
    "log_level": "the logger 'DeepSpeed' has the level that its user sets",
    "seq_parallel_communication_data_type": "there is no sequence parallelism",
    "timers": _SPEED,
    "use_data_before_expert_parallelism": "there is no expert parallelism",
    "vocabulary_size": "DeepSpeed only warns about it",
    "zero_allow_untested_optimizer": _ANY_OPTIMIZER,
    "zero_force_ds_cpu_optimizer": "the engine steps offloaded states itself",
    "bf16.immediate_grad_update": _ITSELF,
    "bf16.check_grad_overflow": "the engine always skips a step whose gradients are not finite",
    "optimizer.legacy_fusion": _SPEED,
    "optimizer.params.foreach": _SPEED,
    "optimizer.params.fused": _SPEED,
    "optimizer.params.set_grad_none": _ITSELF,
    "optimizer.params.fp32_optimizer_states": "optimizer states are always fp32",
    "zero_optimization.allgather_partitions": "DeepSpeed does not read it",
    "zero_optimization.compute_grad_norm": "the norm is part of each step",
    "zero_optimization.contiguous_gradients": _ITSELF,
    "zero_optimization.elastic_checkpoint": "checkpoints load on any number of ranks",
    "zero_optimization.enable_sanity_checks": "the engine always checks",
    "zero_optimization.ignore_unused_parameters": "unused parameters are always right",
    "zero_optimization.leaf_module": "the ranks agree on every gather, so no module must be a leaf",
    "zero_optimization.load_from_fp32_weights": "masters are always loaded",
    "zero_optimization.log_trace_cache_warnings": _SPEED,
    "zero_optimization.memory_efficient_linear": "saved weights are always addresses at stage 3",
    "zero_optimization.override_module_apply": _SPEED,
    "zero_optimization.parameter_alignment": _ITSELF,
    "zero_optimization.pipeline_loading_checkpoint": _ITSELF,
    "zero_optimization.reduce_scatter": "DeepSpeed's two ways have one result",
    "zero_optimization.round_robin_gradients": _ITSELF,
    "zero_optimization.save_muon_momentum_buffer_in_memory": "there is no Muon",
    "zero_optimization.stage3_allgather_sequential": _SPEED,
    "zero_optimization.stage3_max_reuse_distance": "stage3_max_live_parameters decides",
    "zero_optimization.stage3_model_persistence_threshold": "stage3_param_persistence_threshold decides",
    "zero_optimization.stage3_module_granularity_threshold": _ITSELF,
    "zero_optimization.stage3_use_all_reduce_for_fetch_params": _SPEED,
    "zero_optimization.use_multi_rank_bucket_allreduce": _SPEED,
    "zero_optimization.offload_optimizer.cpuadam_cores_perc": _SPEED,
    "zero_optimization.offload_optimizer.fast_init": _SPEED,
    "zero_optimization.offload_optimizer.super_offload": _SPEED,
}

_TRAINS_ANOTHER = "it would train another model"
_NO_PARALLELISM = "the engine shards over all ranks and has no other parallelism"
_QUANTIZED = "it would round the values that ranks send"
_MEMORY = "it asks for memory that the engine does not save"
_DATA = "it changes the data, which is the caller's"

#: Keys that DeepSpeed 0.19.8 has removed, with what to do: an error at every value, as in DeepSpeed.
REMOVED: dict[str, str] = {
    "amp": "use fp16 or bf16",
    "compression_training": "take it out",
    "curriculum_learning": "change the data in the script",
    "eigenvalue": "take it out",
    "elasticity": "the number of ranks is fixed",
    "graph_harvesting": "take it out",
    "nebula": "take it out",
    "progressive_layer_drop": "take it out",
    "quantize_training": "take it out",
    "sparse_attention": "take it out",
    "sparse_gradients": "take it out",
    "zero_optimization.mics_hierarchical_params_gather": "take it out",
    "zero_optimization.mics_shard_size": "take it out",
    "zero_optimization.zeropp_loco_param": "take it out",
}

#: Keys that would change the model or the memory: the value at which they change nothing, and the reason.
#: A section that is not enabled changes nothing.
REFUSED: dict[str, tuple[object, str]] = {
    "compile": (None, "DeepCompile is DeepSpeed's own compiler"),
    "data_efficiency": (None, _DATA),
    "expert_parallel": (None, _NO_PARALLELISM),
    "gradient_allreduce_op": ("mean", _TRAINS_ANOTHER),
    "hybrid_engine": (None, "there is no inference engine"),
    "pipeline": (None, _NO_PARALLELISM),
    "sequence_parallel_size": (1, _NO_PARALLELISM),
    "tensor_parallel": ({"autotp_size": 1}, _NO_PARALLELISM),
    "weight_quantization": (None, _QUANTIZED),
    "fp16.fp16_master_weights_and_grads": (False, _MEMORY + "; masters are fp32"),
    "bf16.bf16_master_weights_and_grads": (False, _MEMORY + "; masters are fp32"),
    "bf16.bf16_optimizer_states": (False, _MEMORY + "; optimizer states are fp32"),
    "data_types.buffer_dtype": (
        None,
        "buffers keep theirs, but running statistics have their norm's weights'",
    ),
    "data_types.keep_in_fp32_modules": (None, "all parameters have the dtype of training"),
    "data_types.param_dtype": (None, "fp16 or bf16 decides; set one of them"),
    "optimizer.params.amsgrad": (False, _TRAINS_ANOTHER),
    "optimizer.params.bias_correction": (True, _TRAINS_ANOTHER),
    "optimizer.params.dampening": (0, _TRAINS_ANOTHER),
    "optimizer.params.initial_accumulator_value": (0, _TRAINS_ANOTHER),
    "optimizer.params.max_grad_norm": (None, "DeepSpeed refuses it; use gradient_clipping"),
    "optimizer.params.maximize": (False, _TRAINS_ANOTHER),
    "optimizer.params.nesterov": (False, _TRAINS_ANOTHER),
    "zero_optimization.legacy_stage1": (False, "stage 1 has one form"),
    "zero_optimization.zenflow": (None, "it would update with old gradients"),
    "zero_optimization.zero_hpz_partition_size": (1, "hybrid sharding is not offered"),
    "zero_optimization.zero_quantized_gradients": (False, _QUANTIZED),
    "zero_optimization.zero_quantized_nontrainable_weights": (False, _QUANTIZED),
    "zero_optimization.zero_quantized_weights": (False, _QUANTIZED),
}

_WHOLE = "its step depends on whole matrices, and the engine updates each element by itself; use AdamW"
_COMPRESSED = "it compresses gradients on the wire, which would train another model; use Adam"
_MUP = "its rates come from the package mup; pass mup's parameter groups and the type without Mu"

#: DeepSpeed's optimizers that the engine does not have, by ``optimizer.type`` in lower case.
REFUSED_OPTIMIZERS: dict[str, str] = {
    "lamb": _WHOLE,
    "muon": _WHOLE,
    "onebitadam": _COMPRESSED,
    "zerooneadam": _COMPRESSED,
    "onebitlamb": _WHOLE,
    "muadam": _MUP,
    "muadamw": _MUP,
    "musgd": _MUP,
}

#: Sections of the engine in which DeepSpeed ignores a name that it does not know; one that resembles a key is an error.
LENIENT = ("", "data_types", "optimizer")

#: The reason for such a name in the list without effect.
IGNORED = "neither DeepSpeed nor the engine knows it"


#: The key by which DeepSpeed turns on a section of REFUSED that is not turned on by ``enabled``.
_SWITCHES = {"compile": "deepcompile", "weight_quantization": "quantized_initialization"}

#: The sections of REFUSED that DeepSpeed turns on if they are given.
_ON_IF_GIVEN = ("zero_optimization.zenflow",)


def changes_nothing(path: str, value: object, neutral: object) -> bool:
    """Whether a key of REFUSED has its neutral value, or is a section that is not enabled."""
    if value == neutral or value in (None, "auto"):
        return True
    if not isinstance(value, dict) or path in _ON_IF_GIVEN:
        return False
    if isinstance(neutral, dict):  # a size of 0 is none, as of 1
        return all(not each or each == neutral.get(key) for key, each in value.items())
    return neutral is None and not value.get("enabled", False) and not value.get(_SWITCHES.get(path, "enabled"), False)
