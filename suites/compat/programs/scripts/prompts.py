"""Prompts of peft that rank 0 saves from a whole state dict, as Trainer does, and trainable rows of an embedding.

Every rank calls `save_pretrained` as in peft's example for DeepSpeed: rank 0 alone has the weights, or no rank has.
"""

import argparse

import deepspeed
import peft
import torch
import torch.distributed as dist
import transformers
from safetensors.torch import load_file
from transformers.integrations import HfDeepSpeedConfig

ROWS = torch.tensor([[3, 4, 5]])
KINDS = {
    "prompt": peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "encoder": peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=4, encoder_hidden_size=8),
    "prefix": peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "tokens": peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], trainable_token_indices=[5, 6]),
}
parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=3)
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "zero_optimization": {"stage": parser.parse_args().stage, "stage3_param_persistence_threshold": 0},
}

deepspeed.init_distributed()
sharded = HfDeepSpeedConfig(CONFIG)
for kind, config in KINDS.items():
    size = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
    base = transformers.GPT2LMHeadModel._from_config(transformers.GPT2Config(vocab_size=20, **size))
    model = peft.get_peft_model(base, config)
    engine, *_ = deepspeed.initialize(model=model, config=CONFIG)
    engine.backward(engine(input_ids=ROWS, labels=ROWS).loss)
    engine.step()
    whole = engine._zero3_consolidated_16bit_state_dict()
    drawn = torch.get_rng_state()
    saved = peft.get_peft_model_state_dict(model, state_dict=whole) if dist.get_rank() == 0 else {}
    assert torch.equal(drawn, torch.get_rng_state())
    dist.barrier()
    if kind != "tokens":
        with deepspeed.zero.GatheredParameters(list(model.parameters())):
            expected = model.get_prompt_embedding_to_save("default")
        assert dist.get_rank() or torch.equal(saved["prompt_embeddings"], expected), kind
    for folder, state in (("given", whole if dist.get_rank() == 0 else None), ("gathered", None)):
        model.save_pretrained(f"{folder}/{kind}", is_main_process=dist.get_rank() == 0, state_dict=state)
        dist.barrier()
        found = load_file(f"{folder}/{kind}/adapter_model.safetensors")
        assert dist.get_rank() or all(torch.equal(found[name], saved[name]) for name in saved.keys() | found), kind
    engine.destroy()
    print("saved", kind, flush=True)
