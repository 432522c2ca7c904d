"""The rows of one server: it reads the rows that workers need, and applies the gradients that they send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from autotune.runtime.embedding.layout import Layout
from autotune.runtime.embedding.rules import Rule


@dataclass(frozen=True, slots=True)
class Gradients:
    """Of rows, by one worker."""

    places: Tensor
    """Each once."""
    values: Tensor


class Shard:
    """Used by one thread. `values`: of each row its weights, then its optimizer state."""

    def __init__(self, layout: Layout, rank: int, weights: Mapping[str, Tensor], rule: Rule) -> None:
        """`weights`: the whole tables, of which this rank takes its pieces."""
        some = next(iter(weights.values()))
        self.width, self.rule, self.num_steps = some.shape[1], rule, 0
        self.values = some.new_zeros((layout.num_rows[rank], self.width + rule.state_width(self.width)))
        self.pieces = layout.pieces[rank]
        for piece in self.pieces:
            self.values[piece.place, : self.width] = weights[piece.table].detach()[piece.first :: piece.step]

    @property
    def weights(self) -> Tensor:
        return self.values[:, : self.width]

    @property
    def num_bytes(self) -> int:
        return self.values.numel() * self.values.element_size()

    def read(self, places: Tensor, out: Tensor | None = None) -> Tensor:
        """The weights of these rows."""
        return torch.index_select(self.weights, 0, places, out=out)

    def apply(self, gradients: Sequence[Gradients]) -> None:
        """One step: the sum of the workers' gradients per row, added up in their order."""
        self.num_steps += 1
        given = [one for one in gradients if len(one.places)]
        if not given:
            return
        if (rate := self.rule.linear_rate) is not None:
            for one in given:
                self.values.scatter_add_(0, one.places[:, None].expand_as(one.values), one.values * -rate)
            return
        total = merged(given)
        rows = self.values.index_select(0, total.places)
        self.rule.update(rows, total.values, self.num_steps)
        self.values.index_put_((total.places,), rows)


def merged(gradients: Sequence[Gradients]) -> Gradients:
    """The sum per row, each row once."""
    if len(gradients) == 1:
        return gradients[0]
    joined = torch.cat([one.places for one in gradients]).numpy()
    unique, inverse = np.unique(joined, return_inverse=True)
    width = gradients[0].values.shape[1]
    sums = gradients[0].values.new_zeros((len(unique), width))
    for one, rows in zip(
        gradients, torch.from_numpy(inverse.reshape(-1)).split([len(one.places) for one in gradients]), strict=True
    ):
        sums.scatter_add_(0, rows[:, None].expand(-1, width), one.values)
    return Gradients(torch.from_numpy(unique), sums)
