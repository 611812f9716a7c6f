"""Fine-tuning of Bloom with LoRA and Hugging Face's Trainer: a small random model, and instructions made on the spot.

    zerobench launch --num_gpus 2 bloom_lora.py --deepspeed bloom_ds_config.json
    deepspeed --num_gpus 2 bloom_lora.py --deepspeed bloom_ds_config.json

Every option of TrainingArguments can be given.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from peft import LoraConfig, TaskType, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

LORA_R, LORA_ALPHA, LORA_DROPOUT = 8, 32, 0.1
MAX_LENGTH = 32
PATTERN = "{} {}"
COLOURS, THINGS = ["red", "green", "blue"], ["ball", "door", "boat", "hat"]
DEFAULTS: dict[str, Any] = {
    "output_dir": "checkpoints",
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 3,
    "warmup_steps": 2,
    "max_steps": 6,
    "learning_rate": 5e-5,
    "logging_steps": 1,
    "eval_strategy": "no",
    "save_strategy": "steps",
    "save_steps": 3,
    "save_total_limit": 5,
    "report_to": "none",
}


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = ["<pad>", "</s>", "<unk>", "name", "the", "colour", "of", "a", "is", *COLOURS, *THINGS]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def make_dataset(tokenizer: PreTrainedTokenizerFast, examples: int, seed: int) -> list[dict[str, list[int]]]:
    """The labels cover the response only."""
    draw, made = random.Random(seed), []
    for _ in range(examples):
        colour, thing = draw.choice(COLOURS), draw.choice(THINGS)
        prompt = f"name the colour of a {colour} {thing}"
        whole = tokenizer(PATTERN.format(prompt, f"the {thing} is {colour}"), truncation=True, max_length=MAX_LENGTH)
        ids = [*whole["input_ids"], tokenizer.eos_token_id]
        asked = len(tokenizer(prompt)["input_ids"])
        made.append({"input_ids": ids, "attention_mask": [1] * len(ids), "labels": [-100] * asked + ids[asked:]})
    draw.shuffle(made)
    return made


def main() -> None:
    parser = HfArgumentParser(TrainingArguments)
    parser.set_defaults(**DEFAULTS)
    (args,) = parser.parse_args_into_dataclasses()
    set_seed(1234)
    tokenizer = make_tokenizer()
    config = BloomConfig(vocab_size=len(tokenizer), hidden_size=32, n_layer=2, n_head=4, pad_token_id=0, eos_token_id=1)
    model = get_peft_model(
        BloomForCausalLM(config),
        LoraConfig(
            task_type=TaskType.CAUSAL_LM,
            inference_mode=False,
            r=LORA_R,
            lora_alpha=LORA_ALPHA,
            lora_dropout=LORA_DROPOUT,
            target_modules=["query_key_value"],
        ),
    )
    model.config.use_cache = False
    model.print_trainable_parameters()
    trainer = Trainer(
        model=model,
        train_dataset=make_dataset(tokenizer, 96, seed=1),
        args=args,
        data_collator=DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=8, return_tensors="pt", padding=True),
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model(str(Path(args.output_dir) / "best"))
    trainer.save_state()


if __name__ == "__main__":
    main()
