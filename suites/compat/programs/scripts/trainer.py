"""Hugging Face's Trainer on a causal language model, with a callback, early stopping and any of its arguments."""

import torch
from transformers import (
    EarlyStoppingCallback,
    EvalPrediction,
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

DEFAULTS = {
    "output_dir": "out",
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "max_steps": 4,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "eval_strategy": "steps",
    "save_strategy": "steps",
    "eval_steps": 2,
    "save_steps": 2,
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_loss",
    "report_to": "none",
    "seed": 3,
}


class Norms(TrainerCallback):
    """Reads the model at each step, as loggers do."""

    def __init__(self) -> None:
        self.parameters = 0

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module = None,
        optimizer: object = None,
        lr_scheduler: object = None,
        **kwargs: object,
    ) -> None:
        self.parameters = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
        assert optimizer.param_groups[0]["lr"] == lr_scheduler.get_last_lr()[0]


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows: int, seed: int) -> None:
        self.ids = torch.randint(0, 40, (rows, 12), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def metrics(prediction: EvalPrediction) -> dict:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main() -> None:
    parser = HfArgumentParser(TrainingArguments)
    parser.set_defaults(**DEFAULTS)
    (args,) = parser.parse_args_into_dataclasses()
    set_seed(args.seed)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    norms = Norms()
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Rows(32, 1),
        eval_dataset=Rows(8, 2),
        compute_metrics=metrics,
        callbacks=[norms, EarlyStoppingCallback(early_stopping_patience=3)] if args.load_best_model_at_end else [norms],
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    evaluation = trainer.evaluate()
    predicted = trainer.predict(Rows(4, 5)).predictions
    trainer.save_model("best")
    if trainer.is_world_process_zero():
        for entry in trainer.state.log_history:
            kept = {k: v for k, v in entry.items() if "second" not in k and "runtime" not in k and "flos" not in k}
            print("log", kept)
        print("evaluation", evaluation["eval_loss"], float(predicted.sum()), norms.parameters)


if __name__ == "__main__":
    main()
