"""Summarisation with T5 and Hugging Face's Seq2SeqTrainer: a small random model, and dialogues made on the spot.

    zerobench launch --num_gpus 2 flan_t5_summarisation.py --deepspeed flan_t5_ds_config.json
    deepspeed --num_gpus 2 flan_t5_summarisation.py --deepspeed flan_t5_ds_config.json

Every option of Seq2SeqTrainingArguments can be given.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    set_seed,
)

MAX_INPUT_LENGTH, MAX_GEN_LENGTH = 32, 8
NAMES, THINGS = ["Ann", "Ben", "Cem", "Dot"], ["book", "cake", "lamp", "map", "song"]
VERBS = ["brings", "buys", "finds", "wants"]
DEFAULTS: dict[str, Any] = {
    "output_dir": "checkpoints",
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "eval_accumulation_steps": 1,
    "predict_with_generate": True,
    "generation_max_length": MAX_GEN_LENGTH,
    "learning_rate": 5e-5,
    "warmup_steps": 2,
    "max_steps": 6,
    "logging_strategy": "steps",
    "logging_steps": 1,
    "eval_strategy": "steps",
    "eval_steps": 3,
    "save_steps": 3,
    "save_total_limit": 2,
    "load_best_model_at_end": True,
    "report_to": "none",
}


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = ["<pad>", "</s>", "<unk>", "summarize:", "says", "that", "a", *NAMES, *THINGS, *VERBS]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def make_dataset(tokenizer: PreTrainedTokenizerFast, examples: int, seed: int) -> list[dict[str, list[int]]]:
    draw, made = random.Random(seed), []
    for _ in range(examples):
        name, verb, thing = draw.choice(NAMES), draw.choice(VERBS), draw.choice(THINGS)
        dialogue = " ".join(
            f"{draw.choice(NAMES)} says that {name} {verb} a {thing}" for _ in range(draw.randint(1, 4))
        )
        features = tokenizer("summarize: " + dialogue, max_length=MAX_INPUT_LENGTH, truncation=True)
        features["labels"] = tokenizer(text_target=f"{name} {verb} a {thing}")["input_ids"] + [tokenizer.eos_token_id]
        made.append({key: features[key] for key in ("input_ids", "attention_mask", "labels")})
    return made


def collate_fn(features: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    padding = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    columns = {key: [torch.LongTensor(feature[key]) for feature in features] for key in padding}
    return {key: pad_sequence(columns[key], batch_first=True, padding_value=value) for key, value in padding.items()}


def main() -> None:
    parser = HfArgumentParser(Seq2SeqTrainingArguments)
    parser.set_defaults(**DEFAULTS)
    (training_args,) = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)
    tokenizer = make_tokenizer()
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=tokenizer.pad_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
    )
    model = T5ForConditionalGeneration(config)

    def compute_metrics(eval_preds: Any) -> dict[str, float]:
        """The words of a summary that the prediction has, and the length of predictions."""
        preds, labels = eval_preds
        preds, labels = (np.where(each != -100, each, tokenizer.pad_token_id) for each in (preds, labels))
        texts = [tokenizer.batch_decode(each, skip_special_tokens=True) for each in (preds, labels)]
        shares = [len(set(a.split()) & set(b.split())) / len(set(b.split())) for a, b in zip(*texts, strict=True)]
        lengths = [np.count_nonzero(each != tokenizer.pad_token_id) for each in preds]
        return {"recall": round(100 * float(np.mean(shares)), 4), "gen_len": float(np.mean(lengths))}

    trainer = Seq2SeqTrainer(
        model=model,
        args=training_args,
        train_dataset=make_dataset(tokenizer, 64, seed=1),
        eval_dataset=make_dataset(tokenizer, 8, seed=2),
        data_collator=collate_fn,
        compute_metrics=compute_metrics,
    )
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    print(trainer.evaluate(make_dataset(tokenizer, 8, seed=3)))
    trainer.save_model(str(Path(training_args.output_dir) / "best"))
    trainer.save_state()


if __name__ == "__main__":
    main()
