"""TiledLinear: a linear layer as tiles, each with parameters of its own, so that stage 3 gathers a tile at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from zerobench.compat.runtime.parts import partition_uniform
from zerobench.compat.zero.gathered import GatheredParameters


class TiledLinear(nn.Module):
    """A linear layer whose weight is cut along both dimensions; parameters have DeepSpeed's names.

    Args:
        in_features, out_features, bias: those of the layer.
        in_splits, out_splits: the numbers of tiles.
        input_is_already_split: whether the input is a list with a tensor for each of the ``in_splits``.
        combine_out_splits: False for a list of outputs in place of one tensor.
        linear_cls: the class of a tile.
        init_linear: a layer whose values the tiles get.
        kwargs: further arguments of a tile.

    Raises:
        RuntimeError: there are fewer features than tiles.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        in_splits: int = 1,
        out_splits: int = 1,
        input_is_already_split: bool = False,
        combine_out_splits: bool = True,
        linear_cls: Any = nn.Linear,
        init_linear: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        for name, splits, features in (("in", in_splits, in_features), ("out", out_splits, out_features)):
            if not 1 <= splits <= features:
                raise RuntimeError(f"{name}_splits must be in range [1, {name}_features], got {splits} of {features}")
        self.in_features, self.out_features, self.use_bias = in_features, out_features, bias
        self.in_splits, self.out_splits = in_splits, out_splits
        self.input_is_already_split, self.combine_out_splits = input_is_already_split, combine_out_splits
        self.in_parts, self.out_parts = (
            partition_uniform(in_features, in_splits),
            partition_uniform(out_features, out_splits),
        )
        widths = [stop - start for start, stop in pairwise(self.in_parts)]
        biases = [False] * (in_splits - 1) + [bias]  # one for a row of tiles
        self.linears = nn.ModuleList(
            nn.ModuleList(linear_cls(w, stop - start, bias=b, **kwargs) for w, b in zip(widths, biases, strict=True))
            for start, stop in pairwise(self.out_parts)
        )
        if init_linear is not None:
            self.copy_params_from(init_linear)

    def _tiles(self) -> list[list[nn.Module]]:
        return [list(row) for row in self.linears]  # type: ignore[call-overload]

    def forward(self, input_: Any) -> Any:
        """The outputs of each row of tiles, added up and put together."""
        inputs = input_ if self.input_is_already_split else self._split_global_input(input_)
        if len(inputs) != self.in_splits:
            raise ValueError(f"the input has {len(inputs)} parts; give one for each of the {self.in_splits} in_splits")
        outputs = [self._row(row, inputs) for row in self._tiles()]
        return self._combine_output_splits(outputs) if self.combine_out_splits else outputs

    def _split_global_input(self, input_: Tensor) -> Sequence[Tensor]:
        sizes = [stop - start for start, stop in pairwise(partition_uniform(input_.shape[-1], self.in_splits))]
        return torch.split(input_, sizes, dim=-1)

    def _row(self, row: list[nn.Module], inputs: Sequence[Tensor]) -> Any:
        first, *others = (tile(part) for tile, part in zip(row, inputs, strict=True))
        total = first.clone()
        for each in others:
            total = total + each
        return total

    def _combine_output_splits(self, outputs: list[Any]) -> Any:
        return torch.cat(outputs, dim=-1)

    @torch.no_grad()
    def copy_params_from(self, other: Any) -> None:
        """Copy the values of a whole layer, at stage 3 those of rank 0; a collective there."""
        for row, (start, stop) in zip(self._tiles(), pairwise(self.out_parts), strict=True):
            for tile, (left, right) in zip(row, pairwise(self.in_parts), strict=True):
                with GatheredParameters(tile.parameters(), modifier_rank=0):
                    tile.get_parameter("weight").copy_(other.weight[start:stop, left:right])
                    if tile.bias is not None:
                        tile.get_parameter("bias").copy_(other.bias[start:stop])


class TiledLinearReturnBias(TiledLinear):
    """TiledLinear of tiles that return an output and a bias, which is not added."""

    def _row(self, row: list[nn.Module], inputs: Sequence[Tensor]) -> Any:
        outputs, biases = zip(*(tile(part) for tile, part in zip(row, inputs, strict=True)), strict=True)
        total = outputs[0].clone()
        for each in outputs[1:]:
            total = total + each
        return total, next((bias for bias in reversed(biases) if bias is not None), None)

    def _combine_output_splits(self, outputs: list[Any]) -> Any:
        biases = [bias for _, bias in outputs if bias is not None]
        return torch.cat([each for each, _ in outputs], dim=-1), torch.cat(biases, dim=-1) if biases else None
