"""HfDeepSpeedConfig before from_pretrained, as transformers advises without its Trainer; LoRA by peft; generation."""

import argparse
import json
from pathlib import Path

import deepspeed
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from transformers.integrations import HfDeepSpeedConfig


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=0)
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()
    ds_config = json.loads(Path(args.deepspeed_config).read_text())
    deepspeed.init_distributed()
    rank = torch.distributed.get_rank()
    if rank == 0:
        torch.manual_seed(0)
        GPT2LMHeadModel(GPT2Config(vocab_size=30, n_embd=16, n_layer=2, n_head=2, n_positions=32)).save_pretrained(
            "gpt"
        )
    torch.distributed.barrier()
    dschf = HfDeepSpeedConfig(ds_config)  # keep this object alive
    model = AutoModelForCausalLM.from_pretrained("gpt")
    torch.manual_seed(1)
    other = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("gpt"))
    torch.manual_seed(2)
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], task_type="CAUSAL_LM"))
    engine, _, _, _ = deepspeed.initialize(
        model=model, config_params=ds_config, model_parameters=[p for p in model.parameters() if p.requires_grad]
    )
    scorer, _, _, _ = deepspeed.initialize(
        model=other, config={k: v for k, v in ds_config.items() if k not in ("optimizer", "scheduler")}
    )
    scorer.module.eval()
    ids = torch.randint(0, 30, (2, 6), generator=torch.Generator().manual_seed(rank)).to(engine.device)
    for _ in range(3):
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        with torch.no_grad():
            score = scorer(input_ids=ids, labels=ids).loss
        if rank == 0:
            print(f"loss {loss.item()!r} score {score.isfinite().item()}")
    engine.module.eval()
    with torch.no_grad():
        made = engine.module.generate(input_ids=ids, max_new_tokens=4 + rank, do_sample=False, synced_gpus=True)
    state = engine._zero3_consolidated_16bit_state_dict() if dschf.is_zero3() else engine.module.state_dict()
    if rank == 0:
        print("generated", made.tolist())
        engine.module.save_pretrained("adapter", state_dict=state)
        print(sorted(path.name for path in Path("adapter").iterdir()))


if __name__ == "__main__":
    main()
