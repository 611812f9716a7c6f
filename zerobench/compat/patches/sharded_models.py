"""Models of transformers at stage 3: four places that take every rank's parameters for whole ones.

- Only rank 0 knows which modules ``from_config()`` has initialized: now every rank does.
- ``from_pretrained()`` compares tied weights that a checkpoint has twice: they are gathered for it.
- ``from_pretrained()`` calls the initialisation of modules whose parameters are loaded and sharded, which may compute
  with them: they are gathered for it.
- ``save_pretrained()`` examines the weights of ranks that write nothing: they leave that out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # torch is not there yet: a module is changed when it is imported
    from torch import Tensor


def _integration(module: Any) -> None:
    """Mark the modules of a part whose weights rank 0 has drawn on every rank, so that none draws sharded ones again.

    Rank 0 has the marks already. A model of several parts, such as CLIP, draws the weights of what is not marked.
    """
    draw = module.initialize_weights_zero3

    def initialize_weights_zero3(model: Any) -> None:
        draw(model)
        for part in model.modules():
            part._is_hf_initialized = True

    module.initialize_weights_zero3 = initialize_weights_zero3


def _sharding_utils(module: Any) -> None:
    """Compare the whole weights; DeepSpeed compares two empty tensors, and so ties weights that differ."""
    compare = getattr(module, "_tied_params_are_equal", None)
    if compare is None:  # transformers before 5.23
        return

    def tied_params_are_equal(source: Tensor, target: Tensor) -> bool:
        from zerobench.compat.zero.gathered import GatheredParameters

        sharded: list[Any] = [each for each in (source, target) if is_sharded(each)]
        if not sharded:
            return bool(compare(source, target))
        with GatheredParameters(sharded):
            return bool(compare(source, target))

    module._tied_params_are_equal = tied_params_are_equal


def _modeling_utils(module: Any) -> None:
    _gather_for_initialisation(module.PreTrainedModel)
    _leave_out_examination(module.PreTrainedModel)


def _gather_for_initialisation(model_class: Any) -> None:
    """Gather what the initialisation of a module may read, while every rank initialises what a checkpoint lacks."""
    initialise, of_module = model_class._initialize_missing_keys, model_class._initialize_weights
    on_every_rank: list[Any] = []  # the models that are being initialised

    def initialize_missing_keys(self: Any, *args: Any, **kwargs: Any) -> Any:
        on_every_rank.append(self)
        try:
            return initialise(self, *args, **kwargs)
        finally:
            on_every_rank.pop()

    def initialize_weights(self: Any, part: Any, *args: Any, **kwargs: Any) -> Any:
        from zerobench.compat.zero.gathered import GatheredParameters

        skipped = not on_every_rank or getattr(part, "_is_hf_initialized", False)
        sharded: list[Any] = [] if skipped else [each for each in _read_by(part) if is_sharded(each)]
        if not sharded:
            return of_module(self, part, *args, **kwargs)
        with GatheredParameters(sharded, modifier_rank=0):
            return of_module(self, part, *args, **kwargs)

    model_class._initialize_missing_keys = initialize_missing_keys
    model_class._initialize_weights = initialize_weights


def _read_by(part: Any) -> Iterator[Tensor]:
    """The parameters of a module and its children, and those that their parametrizations compute weights from."""
    for each in (part, *part.children()):
        yield from each.parameters(recurse=False)
        if "parametrizations" in each._modules:
            yield from each.parametrizations.parameters()


def _leave_out_examination(model_class: Any) -> None:
    """Give a rank that writes nothing an empty state dict, if the caller has none and the model is sharded."""
    save = model_class.save_pretrained

    @functools.wraps(save)
    def save_pretrained(
        self: Any,
        save_directory: Any,
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if state_dict is None and not is_main_process and any(map(is_sharded, self.parameters())):
            state_dict = {}
        return save(self, save_directory, is_main_process, state_dict, *args, **kwargs)

    model_class.save_pretrained = save_pretrained


def is_sharded(parameter: Tensor) -> bool:
    from zerobench.engine.state.resharded import Resharded

    return isinstance(parameter, Resharded)


#: By module, the change that follows its import.
PATCHES: dict[str, Callable[[Any], None]] = {
    "transformers.integrations.deepspeed": _integration,
    "transformers.distributed.sharding_utils": _sharding_utils,
    "transformers.modeling_utils": _modeling_utils,
}
