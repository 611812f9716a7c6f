"""Models of transformers at stage 3: four places that take every rank's parameters for whole ones.

- Only rank 0 knows which modules ``from_config()`` has initialized: now every rank does.
- ``from_pretrained()`` compares tied weights that a checkpoint has twice: they are gathered for it.
- ``from_pretrained()`` calls the initialisation of modules whose parameters are loaded and sharded, which may compute
  with them: they are gathered for it.
- ``save_pretrained()`` examines the weights of ranks that write nothing: they leave that out. If a caller says which
  rank writes and gives no weights, every rank calls, as in the examples of transformers: the weights are gathered.
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
    _save_whole(module.PreTrainedModel)


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


def _save_whole(model_class: Any) -> None:
    """Give a sharded model's whole weights to the rank that writes, and an empty state dict to the others.

    A caller that names the writing rank by ``is_main_process`` calls on every rank, so the weights can be gathered. One
    that does not may be rank 0 alone, which must not wait for the others: its error names a parameter. The rank that
    writes tells the others whether it has the weights, because accelerate gives them to that rank alone.
    """
    save = model_class.save_pretrained

    @functools.wraps(save)
    def save_pretrained(
        self: Any,
        save_directory: Any,
        is_main_process: bool | None = None,
        state_dict: dict[str, Tensor] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        writes = is_main_process is None or is_main_process
        if is_main_process is not None and any(map(is_sharded, self.parameters())):
            gathers = gathers_for(f"save_pretrained({save_directory})", writes, state_dict is None)
            if gathers or (state_dict is None and not writes):
                state_dict = whole_state(self, writes) if gathers else {}
        return save(self, save_directory, writes, state_dict, *args, **kwargs)

    model_class.save_pretrained = save_pretrained


def gathers_for(call: str, writes: bool, lacks: bool) -> bool:
    """Whether the rank that writes lacks the weights, so that all gather them."""
    from zerobench.compat.zero.meeting import ask, pass_over, tell

    if writes:
        tell(call, "gather" if lacks else "go on")
        return lacks
    if not lacks:
        pass_over(call)
        return False
    return ask(call) == "gather"


def whole_state(model: Any, keeps: bool) -> dict[str, Tensor]:
    """The state dict of a sharded model, on the CPU of the ranks that keep it; a collective.

    One module's parameters are whole at a time. Names of one parameter have one tensor, as in a model that is whole.
    """
    from zerobench.compat.zero.gathered import GatheredParameters

    own = model.state_dict(keep_vars=True)
    found: dict[int, Tensor] = {id(each): each for each in own.values() if not is_sharded(each)}
    for module in model.modules():
        parameters = [each for each in module.parameters(recurse=False) if is_sharded(each) and id(each) not in found]
        with GatheredParameters(parameters):
            for each in parameters:
                found[id(each)] = each.detach().cpu().clone() if keeps else each
    return {name: found[id(each)].detach() for name, each in own.items()} if keeps else {}


def is_sharded(parameter: Tensor) -> bool:
    from zerobench.engine.state.resharded import Resharded

    return isinstance(parameter, Resharded)


#: By module, the change that follows its import.
PATCHES: dict[str, Callable[[Any], None]] = {
    "transformers.integrations.deepspeed": _integration,
    "transformers.distributed.sharding_utils": _sharding_utils,
    "transformers.modeling_utils": _modeling_utils,
}
