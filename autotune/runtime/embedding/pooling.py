"""Sums over bags of rows, and the gradient per row: what `nn.EmbeddingBag` computes, for all tables of a width at once.

The gradient of `embedding_bag` with respect to a dense table takes several times as long as adding the gradients of the bags
to their rows, which this module does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from autotune.runtime.embedding.layout import Pooling


def pool(rows: Tensor, lookups: Pooling) -> Tensor:
    """The sum of the rows of each bag; zeros for an empty one."""
    sums: Tensor = _Sums.apply(rows, lookups.places, lookups.offsets)  # type: ignore[no-untyped-call]
    return sums


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor, offsets: Tensor) -> Tensor:
        ctx.num_rows = len(rows)
        ctx.one_each = len(offsets) == len(places) and bool((offsets == torch.arange(len(offsets))).all())
        ctx.save_for_backward(places, offsets)
        if ctx.one_each:
            return rows.index_select(0, places)
        if not len(rows):
            return rows.new_zeros((len(offsets), rows.shape[1]))
        return functional.embedding_bag(places, rows, offsets, mode="sum")

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (of_bags,) = gradients
        places, offsets = ctx.saved_tensors
        if not ctx.one_each:
            counts = torch.diff(offsets, append=offsets.new_tensor([len(places)]))
            of_bags = of_bags.repeat_interleave(counts, 0)
        found = of_bags.new_zeros((ctx.num_rows, of_bags.shape[1]))
        return found.scatter_add_(0, places[:, None].expand(-1, of_bags.shape[1]), of_bags), None, None
