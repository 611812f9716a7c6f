"""Fine-tune a model whose weights are tied, as with Accelerate's examples: rank 0 saves, and every rank calls.

It saves with the whole weights, and without them, as the examples of transformers without Trainer do.
The first checkpoint has the tied weight twice, as a loop over a state dict writes it.
"""

import argparse
import os

import deepspeed
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from transformers.integrations import HfDeepSpeedConfig

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=3)
args = parser.parse_args()

deepspeed.init_distributed()
rank, world = dist.get_rank(), dist.get_world_size()
if rank == 0:
    torch.manual_seed(3)
    config = GPT2Config(vocab_size=48, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    config.resid_pdrop = config.attn_pdrop = config.embd_pdrop = 0.0
    base = GPT2LMHeadModel(config)
    base.save_pretrained("base", state_dict={name: each.detach().clone() for name, each in base.state_dict().items()})
dist.barrier()

ds_config = {
    "train_batch_size": 2 * world,
    "optimizer": {"type": "AdamW", "params": {"lr": 5e-3}},
    "zero_optimization": {
        "stage": args.stage,
        "stage3_param_persistence_threshold": 0,
        "stage3_gather_16bit_weights_on_model_save": True,
    },
}
keeps = HfDeepSpeedConfig(ds_config)
model = AutoModelForCausalLM.from_pretrained("base")
print("tied", model.lm_head.weight is model.transformer.wte.weight)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=ds_config)

generator = torch.Generator().manual_seed(rank)
for _ in range(4):
    tokens = torch.randint(0, 48, (2, 10), generator=generator)
    loss = engine(input_ids=tokens, labels=tokens).loss
    engine.backward(loss)
    engine.step()
    print("loss", loss.item())

state = None
if rank == 0 or args.stage == 3:
    state = engine._zero3_consolidated_16bit_state_dict() if args.stage == 3 else engine.module.state_dict()
engine.module.save_pretrained("saved", is_main_process=rank == 0, state_dict=state)
engine.module.save_pretrained("by_all", is_main_process=rank == 0)
dist.barrier()
print("files", sorted(os.listdir("saved")), sorted(os.listdir("by_all")))
whole = load_file("by_all/model.safetensors")
print("weights", {name: each.double().square().sum().item() for name, each in whole.items()})
again = AutoModelForCausalLM.from_pretrained("saved")
other, *_ = deepspeed.initialize(model=again, config={**ds_config, "optimizer": None})
tokens = torch.arange(10)[None]
with torch.no_grad():
    print("loss of the saved", other(input_ids=tokens, labels=tokens).loss.item())
    print("loss of the model", engine(input_ids=tokens, labels=tokens).loss.item())
