"""A contrastive model of two parts, which transformers constructs under zero.Init each; with a scalar parameter."""

import argparse
import os

import deepspeed
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collectives
from transformers import CLIPConfig, CLIPModel
from transformers.integrations import HfDeepSpeedConfig

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT = {**SIZES, "vocab_size": 40, "max_position_embeddings": 16, "bos_token_id": 0, "pad_token_id": 1}
IMAGES = {**SIZES, "image_size": 16, "patch_size": 8}


def draw_weights(model: torch.nn.Module) -> None:
    """The same on rank 0 at every stage: transformers' own depend on the stage."""
    draw = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        with deepspeed.zero.GatheredParameters(parameter, modifier_rank=0):
            if dist.get_rank() == 0:
                parameter.data.copy_(torch.randn(parameter.shape, generator=draw) * 0.1)


def loss_of(engine: deepspeed.DeepSpeedEngine, batch: dict) -> torch.Tensor:
    outputs = engine(**batch)
    images = torch.cat(collectives.all_gather(outputs.image_embeds))
    texts = torch.cat(collectives.all_gather(outputs.text_embeds))
    logits, pairs = images @ texts.T * 10, torch.arange(len(images))
    entropy = torch.nn.functional.cross_entropy
    return entropy(logits, pairs) + entropy(logits.T, pairs) + 0.01 * outputs.logits_per_text.mean()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int)
    args = parser.parse_args()
    deepspeed.init_distributed()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.98], "weight_decay": 0.2}},
        "zero_optimization": {"stage": args.stage, "stage3_param_persistence_threshold": 10},
    }
    kept = HfDeepSpeedConfig(config)
    model = CLIPModel(CLIPConfig(text_config={**TEXT, "eos_token_id": 39}, vision_config=IMAGES, projection_dim=8))
    print("zero3", kept.is_zero3() == (args.stage == 3))
    draw_weights(model)
    engine, *_ = deepspeed.initialize(model=model, config=config)
    draw = torch.Generator().manual_seed(int(os.environ["RANK"]))
    for step in range(3):
        ids = torch.randint(2, 39, (4, 6), generator=draw)
        batch = {"input_ids": ids, "pixel_values": torch.randn(4, 3, 16, 16, generator=draw)}
        loss = loss_of(engine, batch)
        engine.backward(loss)
        engine.step()
        with deepspeed.zero.GatheredParameters([model.logit_scale]):
            print("step", step, "loss", loss.item(), "scale", model.logit_scale.item())


if __name__ == "__main__":
    main()
