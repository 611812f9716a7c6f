"""Fast paths: kernels of torch for evaluation alone, which would make evaluations differ between the stages."""

from __future__ import annotations

from torch import nn


class FastPaths:
    """Turns off the fast path of ``nn.TransformerEncoderLayer``, which rounds otherwise than its training does.

    torch takes it for evaluation without gradients, unless a module of the layer has a hook of forwards, as at stage 3.
    Teachers and the old policies of reinforcement learning carry the difference into training.

    Args:
        module: the model.
    """

    def __init__(self, module: nn.Module) -> None:
        layers = [each for each in module.modules() if isinstance(each, nn.TransformerEncoderLayer)]
        self._hooks = [each.register_forward_pre_hook(nothing) for each in layers]

    def close(self) -> None:
        """Let torch take the path again."""
        for hook in self._hooks:
            hook.remove()


def nothing(*_: object) -> None:
    """Torch looks for hooks, whatever they do."""
