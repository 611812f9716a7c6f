"""Classification with Trainer, as in run_glue: the configuration as a dict, dynamic padding, a loss of the user's own,
groups with rates of their own, a frozen embedding, and training that goes on from a checkpoint."""

import argparse

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EvalPrediction,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows: int, seed: int) -> None:
        draw = np.random.RandomState(seed)
        self.rows = [draw.randint(1, 30, size=draw.randint(3, 9)).tolist() for _ in range(rows)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self.rows[index], "label": sum(self.rows[index]) % 3}


def collate(features: list) -> dict:
    width = max(len(row["input_ids"]) for row in features)
    ids = torch.tensor([row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in features])
    labels = torch.tensor([row["label"] for row in features])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


class WeightedTrainer(Trainer):
    def compute_loss(
        self, model: torch.nn.Module, inputs: dict, return_outputs: bool = False, **kwargs: object
    ) -> torch.Tensor | tuple:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weight = torch.tensor([1.0, 2.0, 0.5], device=labels.device)
        loss = torch.nn.functional.cross_entropy(outputs.logits.float(), labels, weight=weight)
        return (loss, {"loss": loss, "logits": outputs.logits}) if return_outputs else loss

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        head = [p for n, p in self.model.named_parameters() if p.requires_grad and "classifier" in n]
        body = [p for n, p in self.model.named_parameters() if p.requires_grad and "classifier" not in n]
        self.optimizer = torch.optim.AdamW([{"params": body, "lr": 1e-3}, {"params": head, "lr": 5e-3}])
        return self.optimizer


class Norms(TrainerCallback):
    def on_optimizer_step(self, args: TrainingArguments, state: object, control: object, **kwargs: object) -> None:
        assert kwargs["optimizer"] is not None

    def on_train_end(self, args: TrainingArguments, state: object, control: object, **kwargs: object) -> None:
        control.should_log = True


def metrics(prediction: EvalPrediction) -> dict:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def ds_config(stage: int) -> dict:
    return {
        "fp16": {"enabled": "auto"},
        "bf16": {"enabled": "auto"},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
        },
        "zero_allow_untested_optimizer": True,
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
    }


def get_trainer(stage: int, steps: int) -> Trainer:
    args = TrainingArguments(
        output_dir="glue",
        deepspeed=ds_config(stage),
        per_device_train_batch_size=2,
        per_device_eval_batch_size=3,
        gradient_accumulation_steps=2,
        max_steps=steps,
        lr_scheduler_type="cosine",
        logging_steps=1,
        save_steps=2,
        report_to=[],
        remove_unused_columns=False,
        label_names=["labels"],
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
    )
    set_seed(args.seed)
    config = BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=3,
    )
    model = BertForSequenceClassification(config)
    model.bert.embeddings.requires_grad_(False)
    return WeightedTrainer(
        model=model,
        args=args,
        train_dataset=Rows(30, 1),
        eval_dataset=Rows(7, 2),
        data_collator=collate,
        compute_metrics=metrics,
        callbacks=[Norms()],
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--stage", type=int, default=2)
    args = parser.parse_args()
    get_trainer(args.stage, 4).train()
    trainer = get_trainer(args.stage, 6)
    trainer.train(resume_from_checkpoint=get_last_checkpoint("glue"))
    evaluation = trainer.evaluate()
    if trainer.is_world_process_zero():
        for entry in trainer.state.log_history:
            print("log", {k: v for k, v in entry.items() if k in ("loss", "grad_norm", "learning_rate", "step")})
        print("evaluation", evaluation["eval_loss"], evaluation["eval_accuracy"])


if __name__ == "__main__":
    main()
