"""peft at stage 3: three places that take every rank's parameters for whole ones, or every rank for a GPU.

- Trainer saves on rank 0 alone, where peft calls the prompt encoder, so that rank 0 waited for the others: the prompts
  now come from the whole state dict that Trainer gives.
- ``save_pretrained()`` examines the weights of ranks that write nothing, and calls the prompt encoder there: they leave
  that out. If a caller says which rank writes and gives it no weights, every rank calls, and the weights are gathered.
- ``trainable_token_indices`` reads rows of an embedding on a GPU only: they are read where the embedding is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from zerobench.compat.patches.sharded_models import gathers_for, is_sharded, whole_state

if TYPE_CHECKING:  # torch is not there yet: a module is changed when it is imported
    from torch import Tensor


def _save_and_load(module: Any) -> None:
    of_adapter = module.get_peft_model_state_dict

    @functools.wraps(of_adapter)
    def get_peft_model_state_dict(
        model: Any, state_dict: dict[str, Tensor] | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        encoders = getattr(model, "prompt_encoder", None)
        if state_dict is None or encoders is None or not any(map(is_sharded, encoders.parameters())):
            return of_adapter(model, state_dict, *args, **kwargs)
        model.get_prompt_embedding_to_save = functools.partial(_prompts, model, state_dict)
        try:
            return of_adapter(model, state_dict, *args, **kwargs)
        finally:
            del model.get_prompt_embedding_to_save

    module.get_peft_model_state_dict = get_peft_model_state_dict


def _prompts(model: Any, state_dict: dict[str, Tensor], adapter_name: str) -> Tensor:
    """The prompts of an adapter by an encoder with the whole values, which draws no random numbers."""
    import torch

    start, config = f"prompt_encoder.{adapter_name}.", model.peft_config[adapter_name]
    values = {name.removeprefix(start): each for name, each in state_dict.items() if name.startswith(start)}
    rows = model.prompt_tokens[adapter_name].to("cpu")
    if config.peft_type.value in ("PREFIX_TUNING", "CARTRIDGE"):
        rows = rows[: config.num_virtual_tokens]
    if [*values] == ["embedding.weight"]:
        return values["embedding.weight"][rows].detach().cpu()
    with torch.random.fork_rng(), torch.no_grad():
        encoder = type(model.prompt_encoder[adapter_name])(config)
        encoder.to(next(iter(values.values())).dtype).load_state_dict(values)
        found: Tensor = encoder.train(model.training)(rows.unsqueeze(0))[0]
    return found


def _peft_model(module: Any) -> None:
    save = module.PeftModel.save_pretrained

    @functools.wraps(save)
    def save_pretrained(self: Any, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        writes = kwargs.get("is_main_process")
        if writes is None or not any(map(is_sharded, self.parameters())):
            return save(self, save_directory, *args, **kwargs)
        if gathers_for(f"save_pretrained({save_directory})", writes, kwargs.get("state_dict") is None):
            kwargs["state_dict"] = whole_state(self, writes)
        return save(self, save_directory, *args, **kwargs) if writes else None

    module.PeftModel.save_pretrained = save_pretrained


def _trainable_tokens(module: Any) -> None:
    def collect(self: Any, weight: Tensor, rows: Tensor, embed_dim: int) -> Tensor:
        from zerobench.compat.zero.gathered import GatheredParameters

        with GatheredParameters([weight]):  # type: ignore[list-item]  # an embedding's weight
            return weight[rows].detach().clone()

    module.TrainableTokensLayer._collect_token_weights = collect


#: By module, the change that follows its import.
PATCHES: dict[str, Callable[[Any], None]] = {
    "peft.peft_model": _peft_model,
    "peft.utils.save_and_load": _save_and_load,
    "peft.tuners.trainable_tokens.layer": _trainable_tokens,
}
