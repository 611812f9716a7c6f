"""Fine-tune a speech model, whose weight of a convolution is computed from two parameters: transformers reads it while
it loads the model."""

import argparse

import deepspeed
import torch
import torch.distributed as dist
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC, set_seed
from transformers.integrations import HfDeepSpeedConfig

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=3)
args = parser.parse_args()

deepspeed.init_distributed()
rank, world = dist.get_rank(), dist.get_world_size()
if rank == 0:
    set_seed(3)
    config = Wav2Vec2Config(
        vocab_size=24,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        conv_dim=(8, 8),
        conv_stride=(4, 2),
        conv_kernel=(8, 4),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        mask_time_prob=0.0,
        layerdrop=0.0,
        ctc_loss_reduction="mean",
    )
    Wav2Vec2ForCTC(config).save_pretrained("base")
dist.barrier()

ds_config = {
    "train_batch_size": 2 * world,
    "optimizer": {"type": "AdamW", "params": {"lr": 5e-3}},
    "zero_optimization": {"stage": args.stage, "stage3_param_persistence_threshold": 0},
}
keeps = HfDeepSpeedConfig(ds_config)
model = Wav2Vec2ForCTC.from_pretrained("base")
model.freeze_feature_encoder()
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=ds_config)

set_seed(5 + rank)
for _ in range(4):
    loss = engine(input_values=torch.randn(2, 400), labels=torch.randint(1, 24, (2, 5))).loss
    engine.backward(loss)
    engine.step()
    print("loss", loss.item())
